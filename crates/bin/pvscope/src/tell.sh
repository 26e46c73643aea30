tell_modules() {
echo "@domain $1"
echo '@modules'; cat /proc/modules
echo '@kallsyms'; sed -n '/\[/p;/ _stext$/p' /proc/kallsyms | grep -i ' t '; }
tell_processes() {
echo "@domain $1"
for process in /proc/[0-9]*; do
readlink $process/exe >/dev/null || continue
echo "@process ${process#/proc/} $(cat $process/comm)"; grep ' r-x' $process/maps
done; }
