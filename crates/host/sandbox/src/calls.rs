//! System calls, by seccomp.

mod list;

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch, apply_filter,
    apply_filter_all_threads,
};

/// What the calls may be for, beyond files, memory, threads, and sockets with a path that this process makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallRules {
    /// Starting programs, in other network namespaces too.
    pub programs: bool,
    /// Entering network namespaces.
    pub namespaces: bool,
    /// Changing maps of eBPF programs, and with `programs` loading them.
    pub bpf: bool,
    /// Sockets of any family, such as those of packets and AF_XDP.
    pub sockets: bool,
    /// Connecting to sockets: to every socket with a path that the process may write to, such as a service manager's. A filter cannot tell
    /// them apart.
    pub connects: bool,
}

/// The filter was not applied.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No filter can be made for this processor.
    #[error("no filter of system calls for this processor: {0}")]
    Processor(BackendError),
    /// The kernel refused it.
    #[error("seccomp: {0}")]
    Kernel(#[from] Error),
}

impl From<BackendError> for CallError {
    fn from(error: BackendError) -> Self {
        Self::Processor(error)
    }
}

/// What a call that is not allowed returns. Then a C library that tried a newer call falls back to an older one, or the daemon
/// reports an error, as on an old kernel. Killing the process would cut off all guests for one forgotten call.
const REFUSED: SeccompAction = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());

/// Restricts all threads of this process to the calls that are needed, and with them the threads and programs that they start.
///
/// # Errors
/// There is no filter for this processor, or the kernel has no seccomp.
pub fn restrict_calls(rules: CallRules) -> Result<(), CallError> {
    Ok(apply_filter_all_threads(&program(rules)?)?)
}

/// As [`restrict_calls`], for the calling thread and what it starts.
pub fn restrict_calls_of_thread(rules: CallRules) -> Result<(), CallError> {
    Ok(apply_filter(&program(rules)?)?)
}

fn program(rules: CallRules) -> Result<BpfProgram, BackendError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(allowed(rules)?, REFUSED, SeccompAction::Allow, architecture)?;
    filter.try_into()
}

/// The bits of a socket's type that are no flags: `SOCK_TYPE_MASK` of the kernel.
const SOCK_TYPE: libc::c_int = 0xf;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The allowed calls. The kernel decides about a call without conditions by a bit of a table, and runs no filter for it.
fn allowed(rules: CallRules) -> Result<Rules, BackendError> {
    let all = |calls: &[libc::c_long]| calls.iter().map(|call| (*call, vec![])).collect::<Rules>();
    let mut allowed = all(list::ALWAYS);
    if rules.programs {
        allowed.extend(all(list::PROGRAMS));
    } else {
        let not_executable = [masked(2, libc::PROT_EXEC, 0)?];
        allowed.insert(libc::SYS_mmap, any_of(not_executable.clone())?);
        allowed.insert(libc::SYS_mprotect, any_of(not_executable)?);
        // The flags of `clone3` are in memory, where no filter looks; without it, threads are made by `clone`.
        let thread = [masked(0, libc::CLONE_THREAD, libc::CLONE_THREAD)?];
        allowed.insert(libc::SYS_clone, any_of(thread)?);
        let options = list::THREAD_OPTIONS.iter().map(|option| equal(0, *option));
        allowed.insert(libc::SYS_prctl, any_of(options.collect::<Result<Vec<_>, _>>()?)?);
    }
    // A thread that takes a worker's place is bound to its CPU. Each thread may bind itself only.
    allowed.insert(libc::SYS_sched_setaffinity, any_of([equal(0, 0)?])?);
    if rules.namespaces {
        allowed.extend(all(&[libc::SYS_setns]));
    }
    if rules.bpf {
        allowed.extend(all(&[libc::SYS_bpf]));
    }
    if rules.connects {
        allowed.extend(all(&[libc::SYS_connect]));
    }
    // A socket for datagrams needs no connection to reach a path, and no filter sees where `sendmsg` sends to.
    let mut sockets = connected_sockets()?;
    allowed.insert(libc::SYS_socketpair, sockets.clone());
    if rules.sockets || rules.programs {
        sockets.push(SeccompRule::new(vec![compare(0, SeccompCmpOp::Ne, libc::AF_UNIX)?])?);
        allowed.extend(all(&[libc::SYS_sendto]));
    } else {
        // As `send` calls it.
        allowed.insert(libc::SYS_sendto, any_of([no_address(4)?])?);
    }
    allowed.insert(libc::SYS_socket, sockets);
    Ok(allowed)
}

/// Unix sockets that send to the one peer that they are connected to.
fn connected_sockets() -> Result<Vec<SeccompRule>, BackendError> {
    let kinds = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET];
    let rule = |kind| SeccompRule::new(vec![equal(0, libc::AF_UNIX)?, masked(1, SOCK_TYPE, kind)?]);
    kinds.into_iter().map(rule).collect()
}

fn no_address(argument: u8) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)
}

/// A call is allowed if any of these holds.
fn any_of(
    conditions: impl IntoIterator<Item = SeccompCondition>,
) -> Result<Vec<SeccompRule>, BackendError> {
    conditions.into_iter().map(|condition| SeccompRule::new(vec![condition])).collect()
}

fn equal(argument: u8, value: libc::c_int) -> Result<SeccompCondition, BackendError> {
    compare(argument, SeccompCmpOp::Eq, value)
}

fn masked(
    argument: u8,
    mask: libc::c_int,
    value: libc::c_int,
) -> Result<SeccompCondition, BackendError> {
    compare(argument, SeccompCmpOp::MaskedEq(mask.unsigned_abs().into()), value)
}

/// All values here are flags and numbers of 31 bits.
fn compare(
    argument: u8,
    operation: SeccompCmpOp,
    value: libc::c_int,
) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operation, value.unsigned_abs().into())
}
