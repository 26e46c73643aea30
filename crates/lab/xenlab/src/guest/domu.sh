#!/bin/sh
# A guest's init: mounts the file systems, then starts the agent on the console.
export PATH=/usr/local/bin:/usr/sbin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /run/lock
mount -t devpts devpts /dev/pts
# The kernel must not write between the agent's answers.
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
# In the background: init must reap orphans.
sh /lab/agent <>/dev/hvc0 >&0 2>&0 &
while :; do wait; sleep 1; done
