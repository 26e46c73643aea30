#!/bin/sh
# The first process of a machine without a hypervisor: the file systems, then the script, then the end.
export PATH=/usr/local/bin:/usr/sbin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /run/lock /run/netns
mount -t devpts devpts /dev/pts
ip link set lo up
modprobe -a virtio_pci virtio_net
cd /lab
sh /lab/script </dev/null >/dev/ttyS1 2>&1
busybox poweroff -f
