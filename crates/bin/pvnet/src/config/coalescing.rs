//! `coalesce_frames` and `coalesce_us`, the same for vifs, uplinks and cards.

use std::time::Duration;

use port::Coalescing;

/// The time if only the frames are given: 18 µs, as in Santos et al. 2008 (§5.2).
const AFTER: u32 = 18;
/// The longest time.
const AFTER_MAX: u32 = 10_000;

/// What both keys mean. None if both are absent.
///
/// # Errors
/// A value is out of range, or fewer frames would wake nobody.
pub(super) fn coalescing(
    frames: Option<u32>,
    micros: Option<u32>,
) -> Result<Option<Coalescing>, String> {
    let most = Coalescing::FRAMES_MAX;
    match (frames, micros) {
        (None, None) => return Ok(None),
        (Some(frames), _) if !(1..=most).contains(&frames) => {
            return Err(format!("coalesce_frames is {frames}, not 1 to {most}"));
        }
        (_, Some(micros)) if micros > AFTER_MAX => {
            return Err(format!("coalesce_us is {micros}, not 0 to {AFTER_MAX}"));
        }
        (Some(1), _) | (None, Some(0)) => return Ok(Some(Coalescing::OFF)),
        (Some(_), Some(0)) => {
            return Err("coalesce_us is 0, so that fewer than coalesce_frames would wake nobody; \
                        set it to 1 or more, or coalesce_frames to 1"
                .into());
        }
        _ => {}
    }
    let after = Duration::from_micros(micros.unwrap_or(AFTER).into());
    Ok(Some(Coalescing { frames: frames.unwrap_or(most), after }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_key_is_enough() {
        let some =
            |frames, micros| Ok(Some(Coalescing { frames, after: Duration::from_micros(micros) }));
        assert_eq!(coalescing(None, None), Ok(None));
        assert_eq!(coalescing(Some(6), Some(20)), some(6, 20));
        assert_eq!(coalescing(Some(64), None), some(64, 18));
        assert_eq!(coalescing(None, Some(100)), some(64, 100));
        for off in [(Some(1), None), (Some(1), Some(50)), (None, Some(0))] {
            assert_eq!(coalescing(off.0, off.1), Ok(Some(Coalescing::OFF)));
        }
        for (frames, micros) in
            [(Some(0), None), (Some(65), None), (Some(2), Some(0)), (None, Some(20_000))]
        {
            assert!(coalescing(frames, micros).unwrap_err().starts_with("coalesce_"));
        }
    }
}
