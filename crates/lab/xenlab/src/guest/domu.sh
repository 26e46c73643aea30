#!/bin/sh
# The first process of a guest: the file systems, then the agent on the console.
export PATH=/usr/local/bin:/usr/sbin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /run/lock
mount -t devpts devpts /dev/pts
# The kernel must not write into the answers.
dmesg -n 1
for word in $(cat /proc/cmdline); do
    case $word in lab.name=*) hostname "${word#*=}" ;; esac
done
ip link set lo up
modprobe -a xen-evtchn xen-gntdev xenfs
mount -t xenfs xenfs /proc/xen
if [ -f /lab/script ]; then
    cd /lab
    sh /lab/script </dev/null >/dev/console 2>&1
    while :; do sleep 1000; done
fi
# A child of its own: the first process has to wait for orphans.
sh /lab/agent <>/dev/hvc0 >&0 2>&0 &
while :; do wait; sleep 1; done
