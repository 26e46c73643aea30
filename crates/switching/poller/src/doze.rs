//! A thread that looks from time to time, and sleeps while there is nothing to see.

/// The flag that says whether such a thread is awake.
pub trait AwakeFlag {
    /// Whether the thread is awake (acquire).
    fn is_awake(&self) -> bool;
    /// The thread is awake from here on. Returns whether it was before (acquire and release).
    fn set_awake(&self) -> bool;
    /// The thread is about to sleep (acquire and release). It is an exchange, not a store, so that it has its place among those of
    /// [`set_awake`](Self::set_awake) that read the value before it.
    fn set_dozing(&self);
    /// Orders what was written before with what is read after (sequentially consistent).
    fn full_barrier(&self);
}

/// Called by whoever has just written something that the thread must see. Returns whether the thread must be woken up.
#[inline]
pub fn must_wake(flag: &impl AwakeFlag) -> bool {
    // Either the thread's last look sees what was written before this, or this sees that the thread dozes.
    flag.full_barrier();
    !flag.is_awake() && !flag.set_awake()
}

/// Called by the thread, which then looks once more. If it sees something it stays awake (`set_awake`), otherwise it sleeps until it is woken up.
pub fn doze(flag: &impl AwakeFlag) {
    flag.set_dozing();
    flag.full_barrier();
}

/// Called by the thread when it has seen nothing: it sleeps until it is woken up, or until a look (`sees`) finds something. `sleep` may return early.
pub fn doze_until(flag: &impl AwakeFlag, sees: impl Fn() -> bool, sleep: impl Fn()) {
    doze(flag);
    while !flag.is_awake() && !sees() {
        sleep();
    }
    flag.set_awake();
}
