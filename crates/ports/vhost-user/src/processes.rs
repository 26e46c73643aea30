//! Which process speaks for a front-end, and which processes are refused.
//!
//! A hostile front-end costs its neighbours some milliseconds before it is found out. What it did it may do once for each port that it
//! reaches, so at the first proof all ports of its process are cut off, and refused while that process lives.
//!
//! The process is the one that *sends the messages*: a manager may connect and hand the connection over to QEMU, and would be the front-end of
//! all its machines otherwise. A process number is given again when its process has gone, perhaps between a message and a check of it. So a
//! process is made responsible only if it was found alive before a message with its number was sent, and still lives when that is there.
//!
//! A process that hands its connections to others, one for each proof, is not found out by this; the sessions of a user that has proven hostile
//! therefore begin at a pace. See docs/decisions/0069-the-process-of-a-front-end.md.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use port::Doorbell;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use shm::Sender;
use token_bucket::Pace;

use crate::lock;

/// Most processes that are refused at a time. They live, and each has cost the port of its proof, so more than ports need not be remembered.
pub const REFUSED_MAX: usize = 64;
/// Most users whose sessions begin at a pace.
const USERS_MAX: usize = 16;
/// How long after a proof new sessions of the same user begin at a pace: one per second.
const WARY: Duration = Duration::from_secs(60);
const SESSIONS_PER_SECOND: u32 = 1;

/// A process, which keeps its number as long as it lives.
#[derive(Debug)]
pub struct Process {
    number: Pid,
    /// Readable when it has ended.
    fd: OwnedFd,
}

impl Process {
    /// The process that has the number of a sender now. None if it cannot be seen.
    fn of(sender: Sender) -> Option<Arc<Self>> {
        let number = Pid::from_raw(sender.process.max(0))?;
        let fd = pidfd_open(number, PidfdFlags::empty()).ok()?;
        Some(Arc::new(Self { number, fd }))
    }

    fn lives(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0))
    }

    /// Whether both are the same process, which lives.
    fn is(&self, other: &Self) -> bool {
        self.number == other.number && self.lives() && other.lives()
    }
}

/// Who speaks in a session.
#[derive(Debug)]
struct Speaker {
    sender: Sender,
    /// None if it cannot be seen.
    process: Option<Arc<Process>>,
    /// The last one that has sent a message after it was found alive. If this was another one, it has handed the connection over.
    certain: Option<Arc<Process>>,
}

impl Speaker {
    /// Whether this is the sender of another message, as far as numbers say.
    fn is(&self, sender: Sender) -> bool {
        self.sender == sender && self.process.as_ref().is_none_or(|process| process.lives())
    }
}

/// Why a session must end at once.
#[derive(Clone, Debug)]
enum Verdict {
    /// What its front-end was found to do.
    Proof(String),
    /// What its process was found to do in another session.
    Elsewhere(String),
}

/// Ends a session at once, when its front-end or another one of the same process has proven hostile.
#[derive(Debug)]
pub struct Alarm {
    doorbell: Doorbell,
    speaker: Mutex<Option<Speaker>>,
    verdict: Mutex<Option<Verdict>>,
    /// The processes of all front-ends, and the name of the session's port.
    context: Option<(Arc<Processes>, Box<str>)>,
}

impl Alarm {
    /// That of a session which stands for itself.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn new() -> io::Result<Arc<Self>> {
        Self::of(None)
    }

    /// That of a session of this port, whose process these are to know.
    pub(crate) fn of(context: Option<(Arc<Processes>, &str)>) -> io::Result<Arc<Self>> {
        let context = context.map(|(processes, port)| (processes, port.into()));
        let alarm = Arc::new(Self {
            doorbell: Doorbell::new()?,
            speaker: Mutex::default(),
            verdict: Mutex::default(),
            context,
        });
        if let Some((processes, _)) = &alarm.context {
            processes.enter(&alarm);
        }
        Ok(alarm)
    }

    /// A message has come. It was waited for if nothing was there when the wait began, so that it was sent after all that was
    /// done before. Returns how long the session must wait, because other sessions of the same user begin.
    ///
    /// # Errors
    /// The process is refused, for this reason.
    pub(crate) fn hear(
        self: &Arc<Self>,
        sender: Option<Sender>,
        was_waited_for: bool,
    ) -> Result<Duration, String> {
        let Some((processes, _)) = &self.context else { return Ok(Duration::ZERO) };
        let Some(sender) = sender else { return Ok(Duration::ZERO) };
        let fresh = {
            let mut speaker = lock(&self.speaker);
            match &mut *speaker {
                Some(known) if known.is(sender) => {
                    if was_waited_for && known.process.is_some() {
                        known.certain.clone_from(&known.process);
                    }
                    None
                }
                speaker => {
                    let process = Process::of(sender);
                    let certain = speaker.take().and_then(|speaker| speaker.certain);
                    *speaker = Some(Speaker { sender, process: process.clone(), certain });
                    Some(process)
                }
            }
        };
        match fresh {
            Some(process) => processes.admit(self, process.as_deref(), sender.user, Instant::now()),
            None => processes.check(self).map(|()| Duration::ZERO),
        }
    }

    /// Its front-end has proven hostile: the session ends, and all others of its process.
    pub fn prove(&self, what: &str) {
        self.end(Verdict::Proof(what.to_owned()));
        let Some((processes, port)) = &self.context else { return };
        let (process, user) =
            (self.certain(), lock(&self.speaker).as_ref().map(|one| one.sender.user));
        if let Some(user) = user {
            lock(&processes.0).be_wary(user, Instant::now());
        }
        if let Some(process) = process {
            processes.refuse(&process, port, what);
        }
    }

    /// Ends the session. The first reason stays.
    fn end(&self, verdict: Verdict) {
        lock(&self.verdict).get_or_insert(verdict);
        self.doorbell.ring();
    }

    /// Whether the session must end.
    #[must_use]
    pub fn has_rung(&self) -> bool {
        lock(&self.verdict).is_some()
    }

    /// Why it must end, if it must.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        Some(self.verdict()?.0)
    }

    /// Why it must end, and whether its own front-end has proven hostile.
    pub(crate) fn verdict(&self) -> Option<(String, bool)> {
        match lock(&self.verdict).clone()? {
            Verdict::Proof(why) => Some((why, true)),
            Verdict::Elsewhere(why) => Some((why, false)),
        }
    }

    /// Whether somebody would be responsible for what the front-end does, if its process can be seen. One that waits for its first answer
    /// before it goes on, as everybody does who wants to know the answer, always is.
    pub(crate) fn is_accountable(&self) -> bool {
        let is_nobody = |speaker: &Speaker| speaker.process.is_some() && speaker.certain.is_none();
        !lock(&self.speaker).as_ref().is_some_and(is_nobody)
    }

    /// The process that is responsible.
    fn certain(&self) -> Option<Arc<Process>> {
        lock(&self.speaker).as_ref()?.certain.clone()
    }

    /// Whether this process speaks in the session, as far as anybody knows, or is responsible for it.
    fn is_of(&self, process: &Process) -> bool {
        let speaker = lock(&self.speaker);
        let both = speaker.iter().flat_map(|speaker| [&speaker.process, &speaker.certain]);
        both.flatten().any(|own| own.is(process))
    }

    /// Whether what is proven of the other's front-end is proven of this one too.
    pub(crate) fn shares_blame(&self, culprit: &Self) -> bool {
        if std::ptr::eq(self, culprit) {
            return true;
        }
        culprit.certain().is_some_and(|process| self.is_of(&process))
    }
}

impl AsFd for Alarm {
    /// Readable when the session must end.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

/// The processes that speak for a daemon's front-ends.
#[derive(Debug, Default)]
pub struct Processes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Of the sessions that there are.
    alarms: Vec<Weak<Alarm>>,
    refused: Vec<Refused>,
    wary: Vec<Wary>,
}

#[derive(Debug)]
struct Refused {
    process: Arc<Process>,
    why: String,
}

/// A user with a process that has proven hostile.
#[derive(Debug)]
struct Wary {
    user: u32,
    until: Instant,
    pace: Pace,
}

impl Processes {
    /// A session begins.
    fn enter(&self, alarm: &Arc<Alarm>) {
        let mut state = lock(&self.0);
        state.alarms.retain(|alarm| alarm.strong_count() > 0);
        state.alarms.push(Arc::downgrade(alarm));
    }

    /// A process speaks in a session for the first time. One that speaks in another session already does not wait.
    fn admit(
        &self,
        alarm: &Arc<Alarm>,
        process: Option<&Process>,
        user: u32,
        now: Instant,
    ) -> Result<Duration, String> {
        self.check(alarm)?;
        let mut state = lock(&self.0);
        state.wary.retain(|wary| wary.until > now);
        if !state.wary.iter().any(|wary| wary.user == user) {
            return Ok(Duration::ZERO);
        }
        let is_known = process.is_some_and(|process| {
            let mut others = state.alarms.iter().filter_map(Weak::upgrade);
            others.any(|other| !Arc::ptr_eq(&other, alarm) && other.is_of(process))
        });
        let wary = state.wary.iter_mut().find(|wary| wary.user == user && !is_known);
        Ok(wary.map_or(Duration::ZERO, |wary| wary.pace.begin(now)))
    }

    /// Whether the process that speaks may.
    fn check(&self, alarm: &Alarm) -> Result<(), String> {
        let mut state = lock(&self.0);
        // A number may belong to another process when its process has gone.
        state.refused.retain(|refused| refused.process.lives());
        match state.refused.iter().find(|refused| alarm.is_of(&refused.process)) {
            Some(Refused { why, .. }) => Err(why.clone()),
            None => Ok(()),
        }
    }

    /// A process has proven hostile at this port: its sessions end, and it is refused.
    fn refuse(&self, process: &Arc<Process>, port: &str, what: &str) {
        let mut state = lock(&self.0);
        let why = format!(
            "its process ({}) is refused as long as it lives: at port {port:?} {what}",
            process.number.as_raw_nonzero()
        );
        state.refused.retain(|refused| refused.process.lives());
        // Several of its sessions may give proof, and the same one again.
        let is_known = state.refused.iter().any(|refused| refused.process.is(process));
        if !is_known && state.refused.len() < REFUSED_MAX {
            state.refused.push(Refused { process: process.clone(), why: why.clone() });
        }
        let alarms: Vec<_> = state.alarms.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        for alarm in alarms {
            if alarm.is_of(process) {
                alarm.end(Verdict::Elsewhere(why.clone()));
            }
        }
    }
}

impl State {
    /// A process of a user has proven hostile, perhaps one that nobody is certain of: new sessions of the user begin at a pace for
    /// a while.
    fn be_wary(&mut self, user: u32, now: Instant) {
        self.wary.retain(|wary| wary.until > now);
        let until = now + WARY;
        if let Some(wary) = self.wary.iter_mut().find(|wary| wary.user == user) {
            wary.until = until;
        } else {
            if self.wary.len() == USERS_MAX {
                self.wary.remove(0);
            }
            let mut pace = Pace::new(1, SESSIONS_PER_SECOND, now);
            // The first one waits too.
            pace.count(1, now);
            self.wary.push(Wary { user, until, pace });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// A process that does nothing, and ends with this.
    struct Other(Child);

    impl Other {
        fn start() -> Self {
            Self(Command::new("sleep").arg("1000").spawn().unwrap())
        }

        fn sender(&self) -> Sender {
            let user = rustix::process::geteuid().as_raw();
            Sender { process: i32::try_from(self.0.id()).unwrap(), user }
        }
    }

    impl Drop for Other {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A session in which nobody has spoken.
    fn session(processes: &Arc<Processes>, port: &str) -> Arc<Alarm> {
        Alarm::of(Some((processes.clone(), port))).unwrap()
    }

    /// A session in which this process has sent two messages, the second of them as an answer.
    fn spoken(processes: &Arc<Processes>, port: &str, other: &Other) -> Arc<Alarm> {
        let alarm = session(processes, port);
        for was_waited_for in [false, true] {
            alarm.hear(Some(other.sender()), was_waited_for).unwrap();
        }
        alarm
    }

    #[test]
    fn all_sessions_of_a_process_end_at_its_first_proof_and_a_neighbours_goes_on() {
        let processes = Arc::default();
        // They have one user, and whoever connected does not matter.
        let (hostile, honest) = (Other::start(), Other::start());
        let own = ["a", "b", "c"].map(|port| spoken(&processes, port, &hostile));
        let neighbours = ["d", "e"].map(|port| spoken(&processes, port, &honest));
        own[1].prove("the front-end did it");
        assert_eq!(own[1].verdict(), Some(("the front-end did it".into(), true)));
        for other in [&own[0], &own[2]] {
            let (why, is_hostile) = other.verdict().unwrap();
            assert!(why.contains(&hostile.0.id().to_string()) && why.contains("\"b\""), "{why}");
            assert!(!is_hostile, "its port is not closed for others");
        }
        own[2].prove("the front-end did it");
        assert_eq!(lock(&processes.0).refused.len(), 1, "it takes the place of others");
        for neighbour in &neighbours {
            assert_eq!(neighbour.verdict(), None);
            assert_eq!(neighbour.hear(Some(honest.sender()), true), Ok(Duration::ZERO));
        }
        // It is refused as long as it lives, by its first message; its neighbour is not, and does not wait either.
        let why = session(&processes, "f").hear(Some(hostile.sender()), false).unwrap_err();
        assert!(why.contains("refused as long as it lives"), "{why}");
        let again = session(&processes, "f").hear(Some(honest.sender()), false);
        assert_eq!(again, Ok(Duration::ZERO));
        // Another process at the same port, as when it was started again.
        drop(hostile);
        let next = Other::start();
        assert!(session(&processes, "a").hear(Some(next.sender()), false).is_ok());
        assert!(lock(&processes.0).refused.is_empty(), "it is forgotten");
    }

    /// Its number may be another one's by then.
    #[test]
    fn a_process_is_not_blamed_for_what_was_sent_before_it_was_seen_to_live() {
        for answers in [vec![false], vec![false, false, false]] {
            let processes = Arc::default();
            let other = Other::start();
            let alarm = session(&processes, "a");
            for was_waited_for in answers {
                alarm.hear(Some(other.sender()), was_waited_for).unwrap();
            }
            assert!(!alarm.is_accountable(), "its rings must not be served");
            let own = spoken(&processes, "b", &other);
            alarm.prove("it did it");
            assert_eq!(alarm.verdict().map(|(_, is_hostile)| is_hostile), Some(true));
            assert!(own.verdict().is_none());
            assert!(session(&processes, "c").hear(Some(other.sender()), false).is_ok());
        }
    }

    #[test]
    fn a_process_that_cannot_be_seen_is_nobody() {
        let processes = Arc::default();
        let unseen = Sender { process: 0, user: 65534 };
        let [one, two] = ["a", "b"].map(|port| session(&processes, port));
        for was_waited_for in [false, true, true] {
            for alarm in [&one, &two] {
                assert!(alarm.hear(Some(unseen), was_waited_for).is_ok());
            }
        }
        assert!(one.is_accountable());
        one.prove("it did it");
        assert!(one.has_rung() && !two.has_rung());
        assert!(two.hear(Some(unseen), true).is_ok());
        assert!(session(&processes, "c").hear(Some(unseen), false).is_ok());
    }

    #[test]
    fn one_who_takes_a_connection_over_is_who_speaks() {
        let processes = Arc::default();
        let (manager, hostile) = (Other::start(), Other::start());
        let [handed, kept] = ["a", "b"].map(|port| spoken(&processes, port, &manager));
        for was_waited_for in [false, true] {
            handed.hear(Some(hostile.sender()), was_waited_for).unwrap();
        }
        handed.prove("it did it");
        assert!(kept.verdict().is_none());
        assert!(session(&processes, "c").hear(Some(hostile.sender()), false).is_err());
        // A word of somebody else's who may have gone takes no blame away.
        let (first, second) = (Other::start(), Other::start());
        let alarm = spoken(&processes, "d", &first);
        alarm.hear(Some(second.sender()), false).unwrap();
        alarm.prove("it did it");
        assert!(session(&processes, "e").hear(Some(first.sender()), false).is_err());
        assert!(session(&processes, "e").hear(Some(second.sender()), false).is_ok());
    }

    /// Another process for each proof.
    #[test]
    fn new_processes_of_a_user_who_has_proven_hostile_begin_at_a_pace() {
        let processes: Arc<Processes> = Arc::default();
        let honest = Other::start();
        let before = spoken(&processes, "z", &honest);
        spoken(&processes, "a", &Other::start()).prove("it did it");
        let others: Vec<_> = (0..3).map(|_| Other::start()).collect();
        let hear = |other: &Other| session(&processes, "b").hear(Some(other.sender()), false);
        let waits: Vec<_> = others.iter().map(|other| hear(other).unwrap()).collect();
        let second = Duration::from_secs(1) / SESSIONS_PER_SECOND;
        for pair in waits.windows(2) {
            // Some of the time has passed.
            assert!(pair[1] > pair[0] && pair[1] <= pair[0] + second, "{waits:?}");
        }
        assert!(waits[0] > Duration::ZERO, "{waits:?}");
        assert_eq!(hear(&honest), Ok(Duration::ZERO), "it has a session from before");
        drop(before);
        let another = Sender { user: honest.sender().user.wrapping_add(1), ..others[0].sender() };
        assert_eq!(session(&processes, "c").hear(Some(another), false), Ok(Duration::ZERO));
        // After a while without proofs nobody waits.
        let later = Instant::now() + WARY;
        let alarm = session(&processes, "d");
        assert_eq!(
            processes.admit(&alarm, None, others[0].sender().user, later),
            Ok(Duration::ZERO)
        );
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let processes: Arc<Processes> = Arc::default();
        let others: Vec<_> = (0..REFUSED_MAX + 2).map(|_| Other::start()).collect();
        for (n, other) in others.iter().enumerate() {
            let alarm = session(&processes, "a");
            for was_waited_for in [false, true] {
                let sender = Sender { user: u32::try_from(n).unwrap(), ..other.sender() };
                alarm.hear(Some(sender), was_waited_for).unwrap();
            }
            alarm.prove("it did it");
        }
        let state = lock(&processes.0);
        assert_eq!((state.refused.len(), state.wary.len()), (REFUSED_MAX, USERS_MAX));
        assert_eq!(state.alarms.iter().filter(|alarm| alarm.strong_count() > 0).count(), 0);
        assert!(state.alarms.len() < 3);
    }
}
