//! What a baseline's numbers depend on besides pvnet's source.

/// The keys and values. Numbers of another machine or another compiler are not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance(Vec<(String, String)>);

impl Provenance {
    /// Of these keys and values.
    pub fn new(values: Vec<(&str, String)>) -> Self {
        Self(values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// Adds one that was read.
    pub fn add(&mut self, key: &str, value: &str) {
        self.0.push((key.to_owned(), value.to_owned()));
    }

    /// The lines of a file: `KEY VALUE`.
    pub fn lines(&self) -> Vec<String> {
        self.0.iter().map(|(key, value)| format!("{key} {value}")).collect()
    }

    /// Says what differs.
    ///
    /// # Errors
    /// In words, if numbers of the two cannot be compared.
    pub fn check(&self, now: &Self) -> std::result::Result<(), String> {
        let value = |of: &Self, key: &str| {
            let found = of.0.iter().find(|(known, _)| known == key);
            found.map_or_else(|| "nothing".to_owned(), |(_, value)| value.clone())
        };
        let keys = now.0.iter().map(|(key, _)| key);
        let differing = keys.filter(|key| value(self, key) != value(now, key));
        let differing: Vec<String> = differing
            .map(|key| format!("{key} is {} here and {} there", value(now, key), value(self, key)))
            .collect();
        if differing.is_empty() {
            return Ok(());
        }
        Err(format!(
            "this baseline was made with something else, so its numbers say nothing here: {}. Use the same, or make it anew with \
             --update",
            differing.join("; ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let of = |kernel: &str| {
            Provenance::new(vec![("profile", "release".to_owned()), ("kernel", kernel.to_owned())])
        };
        assert_eq!(of("a").check(&of("a")), Ok(()));
        let message = of("a").check(&of("b")).unwrap_err();
        assert!(message.contains("kernel is b here and a there"), "{message}");
        assert!(!message.contains("profile"), "{message}");
    }
}
