#!/bin/sh
# The init of a virtual machine: mounts the file systems, then starts the agent on the host's port.
export PATH=/usr/local/bin:/usr/sbin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /run/lock
mount -t devpts devpts /dev/pts
for word in $(cat /proc/cmdline); do
    case $word in lab.name=*) hostname "${word#*=}" ;; esac
done
ip link set lo up
modprobe -a virtio_pci virtio_console virtio_net
until [ -c /dev/vport0p1 ]; do sleep 0.05; done
# In the background: init must reap orphans.
sh /lab/agent <>/dev/vport0p1 >&0 2>/dev/console &
while :; do wait; sleep 1; done
