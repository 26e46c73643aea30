#!/bin/sh
# The first process of dom0: the file systems, the toolstack's daemons, then the agent on the host's port.
xen=$(echo /usr/lib/xen-*/bin)
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:$xen
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /run/lock /run/xen /run/xenstored /run/xen-hotplug
mount -t devpts devpts /dev/pts
hostname dom0
modprobe -a virtio_pci virtio_console virtio_net 9p 9pnet_virtio xen-evtchn xen-gntdev xen-gntalloc xen-privcmd xenfs
mount -t xenfs xenfs /proc/xen
# A batch has it all, and nobody to talk to.
[ -f /lab/script ] || {
mkdir -p /lab/guests
mount -t 9p -o trans=virtio,ro,cache=loose,msize=262144 guests /lab/guests
}
xenstored --pid-file /run/xenstored.pid
xen-init-dom0 >/dev/null
xenconsoled --pid-file=/run/xenconsoled.pid --log=guest --log-dir=/var/log/xen/console
ip link set lo up
if [ -f /lab/script ]; then
    cd /lab
    sh /lab/script </dev/null >/dev/ttyS1 2>&1
    busybox poweroff -f
fi
until [ -c /dev/vport0p1 ]; do sleep 0.05; done
sh /lab/agent <>/dev/vport0p1 >&0 2>/dev/console &
# A person's shell, in case one comes. In the foreground: what a script starts beside itself ignores Ctrl-C for good,
# and the first process has to wait for orphans, which it does meanwhile.
while :; do
    ENV=/lab/shellrc setsid -c busybox sh -i <>/dev/ttyS1 >&0 2>&1
    printf '\035' >/dev/ttyS1
    sleep 1
done
