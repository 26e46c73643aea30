#!/bin/sh
# Prints what pvscope needs for names and counts, to a console that QEMU writes to a file.
#
#   pvscope-tell before INTERFACE   the interface's counters, before mark-begin
#   pvscope-tell after INTERFACE    the interface's counters, after mark-end
#   pvscope-tell [DOMAIN]           the modules' symbols and the mappings of programs, while these still run.
#                                   Under Xen give the domain's number; domain 0 comes last, as it ends the report.
# Run as root. Needs sh, cat, grep, readlink and sed.

TELL

counted() {
for way in rx tx; do for what in packets bytes; do
read -r count <"/sys/class/net/$1/statistics/${way}_$what" || exit 1
echo "$count"; done; done; }

case ${1:-0} in
before | after)
    [ -n "$2" ] || { echo "pvscope-tell: which interface?" >&2; exit 2; }
    # A console may be in the middle of a line.
    echo; echo "@$1"
    counted "$2"
    ;;
*[!0-9]*)
    echo "usage: pvscope-tell [DOMAIN], pvscope-tell before INTERFACE, pvscope-tell after INTERFACE" >&2
    exit 2
    ;;
*)
    echo; tell_modules "${1:-0}"; tell_processes "${1:-0}"
    [ "${1:-0}" != 0 ] || echo '@end'
    ;;
esac
