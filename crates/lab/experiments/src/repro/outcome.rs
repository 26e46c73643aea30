//! What became of a measurement.

use crate::error::Result;

/// Turns a failure into a row that says so, so that the other measurements go on. An interrupt ends
/// everything.
pub fn kept<T>(result: Result<T>) -> Result<std::result::Result<T, String>> {
    match result {
        Err(error) if error.is_interrupt() => Err(error),
        result => Ok(result.map_err(|error| error.to_string())),
    }
}

/// The mean; none of nothing.
pub fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_failure_becomes_a_row_and_an_interrupt_ends_everything() {
        let failed = kept(Err::<(), _>(Error::Failed("it is so".to_owned())));
        assert_eq!(failed.unwrap().unwrap_err(), "it is so");
        assert!(kept(Err::<(), _>(Error::Lab(lab::Error::Interrupted))).is_err());
    }
}
