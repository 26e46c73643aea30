//! How evenly guests are served.

/// Jain's index: 1 if all have the same, 1/n if one of n has everything (Jain, Chiu and Hawe 1984).
pub fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_runs_from_one_for_all_to_one_for_one() {
        assert!((jain(&[7; 24]) - 1.0).abs() < 1e-9);
        assert!((jain(&[9, 0, 0, 0]) - 0.25).abs() < 1e-9);
        assert!((jain(&[3, 1]) - 0.8).abs() < 1e-9);
        assert_eq!(jain(&[0, 0]), 0.0);
    }
}
