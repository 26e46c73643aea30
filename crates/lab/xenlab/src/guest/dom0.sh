#!/bin/sh
# dom0's init: mounts the file systems, starts the toolstack's daemons, then the agent on the host's port.
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
# A batch has the guests' files in its own archive.
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
# A shell for an interactive user. In the foreground: background jobs of a script ignore Ctrl-C,
# and init must reap orphans, which it does while it waits.
while :; do
    ENV=/lab/shellrc setsid -c busybox sh -i <>/dev/ttyS1 >&0 2>&1
    printf '\035' >/dev/ttyS1
    sleep 1
done
