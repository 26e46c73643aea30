# Otherwise busybox's shell runs its built-in ones.
alias ip=/usr/bin/ip ping=/usr/bin/ping
