#!/bin/sh
# The init of a machine without a hypervisor: mounts the file systems, runs the script, and powers off.
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
