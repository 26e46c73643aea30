//! Rings under loom: every interleaving of the two ends (up to a bound on preemptions), and every reordering that the memory
//! model allows, of the production code of the device and of the driver of bursts. They run over loom's atomics, with the orders
//! and barriers that they have in production.
//!
//! Shown: no notification is lost (loom reports the deadlock when a side sleeps for ever while work waits for it), and what
//! a side sees of a chain was written whole. The control tests remove a barrier or a final check and must fail.
//!
//! What finds which fault: each was made in the source, once, and the models were run. "All" are those of that end and layout;
//! a model in which the device fills buffers is a "fill", one in which it reads them a "read".
//!
//! | fault | found by |
//! | --- | --- |
//! | `BurstDriver::publish` or `arm` without its barrier, `arm` without its final check or with the check first | all of `burst` (deadlock) |
//! | `BurstDriver::arm` forgets that an entry stands for more buffers | `burst`, packed in pairs (deadlock) |
//! | split `publish`: index relaxed; `push`: index before the descriptor | all split of `burst` (wrong length) |
//! | split `push`: an entry is not written again | fill and read of `burst` (wrong length) |
//! | split `take`: used index relaxed | fill and read of `burst` (an old entry) |
//! | packed `push`: length, id and flags relaxed, or before the address | all packed of `burst` (wrong contents) |
//! | packed `take`: length, id and flags relaxed | fill of `burst` (wrong contents) |
//! | the device's end without one of its barriers or its final check | all of that layout (deadlock) |
//! | split device: available or used index relaxed, used index before the entries | `split`, fill and read of `burst` |
//! | packed device: a used descriptor relaxed | fills of `packed` and `burst` (wrong contents) |
//! | packed device: `pop` or `pop_singles` reads flags relaxed | the models that use it (wrong contents) |
//!
//! Nothing is found where event flags, event indices or event suppressions are read or written relaxed, where a split `push`
//! writes its entry relaxed, and where the check of a split `arm` is relaxed: a barrier or the index behind them orders these.
//! Nor is it where a split `arm` forgets that it knows of returned buffers: the used index differs then too.
//! A packed device that writes the first used descriptor of a batch first is no fault either: each of them is whole.

mod burst;
mod ends;
mod memory;
mod packed;
mod split;
