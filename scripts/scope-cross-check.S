// A machine that only executes known work, for scripts/scope-cross-check: caches modelled by pvscope and by QEMU's own
// plugin must count the same. It has two parts: .rom, where the processor starts, and .memory, which QEMU loads at 1 MiB.
//
// QEMU's plugin counts from the reset. WORK=0 leaves out the work, so that the rest can be subtracted.

#define BASE    0x100000
#define CODE    0x104000
#define DATA    0x400000
#define STACK   0x3f0000

// 1 MiB of data, used at random places.
#define RANDOM  200000
#define MASK    0xffff8
// 48 KiB in order, which L1 has not room for, and 16 KiB, which it has.
#define ORDER   (48 << 10)
#define HOT     (16 << 10)
#define PASSES  8
// 128 KiB of functions of a line each, called at random.
#define CALLS   50000
#define FUNCTIONS 2048

    .section .rom, "ax"
    .code16
rom:
entry:
    cli
    lgdtl %cs:(table - rom)
    movl $0x20, %eax            // page tables of four levels
    movl %eax, %cr4
    movl $BASE, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx      // EFER: long mode
    rdmsr
    orl $0x100, %eax
    wrmsr
    movl %cr0, %eax
    andl $0x9fffffff, %eax      // caches on
    orl $0x80000001, %eax       // paging and protection
    movl %eax, %cr0
    ljmpl $8, $CODE
    .balign 8
descriptors:
    .quad 0, 0x00209a0000000000
table:
    .word 15
    .long 0xf0000 + descriptors - rom
    .org 0xfff0
    ljmp $0xf000, $(entry - rom)
    .org 0x10000, 0xff

    .section .memory, "ax"
    .code64
memory:
    // One table per level; 64 MiB at their own addresses, in pages of 2 MiB that were accessed and written.
    .quad BASE + 0x1000 + 0x67
    .org 0x1000
    .quad BASE + 0x2000 + 0x67
    .org 0x2000
    .set page, 0
    .rept 32
    .quad page + 0xe7
    .set page, page + 0x200000
    .endr

    .org CODE - BASE
    movq $STACK, %rsp
    rdtsc
    nopl BEGIN(%rax)
    jmp work
    .balign 64
work:
#if WORK
    movl $1, %eax
    movl $DATA, %ebx
    movl $RANDOM, %ecx
random:
    call next
    movl %eax, %edx
    shrl $8, %edx
    andl $MASK, %edx
#if UNALIGNED
    addl $5, %edx
#endif
    testl $0x40, %eax
    jz only_read
    addq %rcx, (%rbx, %rdx)     // reads and writes
    jmp used
only_read:
    movq (%rbx, %rdx), %rsi
used:
    decl %ecx
    jnz random

    movl $PASSES, %edi
passes:
    xorl %edx, %edx
order:
    movq %rdx, (%rbx, %rdx)
    addl $8, %edx
    cmpl $ORDER, %edx
    jne order
    xorl %edx, %edx
hot:
    movq (%rbx, %rdx), %rsi
    addl $8, %edx
    cmpl $HOT, %edx
    jne hot
    decl %edi
    jnz passes

    movl $CALLS, %ecx
calls:
    call next
    movl %eax, %edx
    shrl $10, %edx
    andl $(FUNCTIONS - 1), %edx
    shll $6, %edx
    addl $(BASE + functions - memory), %edx
    call *%rdx
    decl %ecx
    jnz calls
#endif
    rdtsc
    nopl END(%rax)
    // End the machine: an exception without a table of handlers.
    lidt nothing(%rip)
    int3

next:
    imull $1103515245, %eax, %eax
    addl $12345, %eax
    ret

    .balign 8
nothing:
    .word 0
    .quad 0

    .balign 4096
functions:
    .rept FUNCTIONS
    incl %esi
    ret
    .balign 64
    .endr
