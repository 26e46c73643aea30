//! SPDX licence expressions, as far as manifests use them.

/// Whether `expression` is satisfied by the licences in `allowed`.
///
/// Operators are `OR`, `AND`, `WITH` and parentheses; `/` is the old spelling of `OR`. A licence with an exception
/// must be allowed as a whole (`Apache-2.0 WITH LLVM-exception`). An expression that does not parse is not allowed.
pub fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = Words { words: spaced.split_whitespace().collect(), next: 0, allowed };
    let result = words.any();
    result == Some(true) && words.next == words.words.len()
}

struct Words<'a> {
    words: Vec<&'a str>,
    next: usize,
    allowed: &'a [String],
}

/// Each method parses one level of the grammar and returns its value, or `None` if the expression is malformed.
impl<'a> Words<'a> {
    fn any(&mut self) -> Option<bool> {
        let mut value = self.all()?;
        while self.accept("OR") {
            value |= self.all()?;
        }
        Some(value)
    }

    fn all(&mut self) -> Option<bool> {
        let mut value = self.one()?;
        while self.accept("AND") {
            value &= self.one()?;
        }
        Some(value)
    }

    fn one(&mut self) -> Option<bool> {
        if self.accept("(") {
            let value = self.any()?;
            return self.accept(")").then_some(value);
        }
        let mut licence = self.identifier()?.to_owned();
        if self.accept("WITH") {
            licence = format!("{licence} WITH {}", self.identifier()?);
        }
        Some(self.allowed.contains(&licence))
    }

    fn identifier(&mut self) -> Option<&'a str> {
        let word = *self.words.get(self.next)?;
        self.next += 1;
        (!matches!(word, "(" | ")" | "OR" | "AND" | "WITH")).then_some(word)
    }

    fn accept(&mut self, word: &str) -> bool {
        let found = self.words.get(self.next) == Some(&word);
        self.next += usize::from(found);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    fn allowed(expression: &str) -> bool {
        let list = ["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(String::from);
        is_allowed(expression, &list)
    }

    #[test]
    fn one_alternative_is_enough() {
        assert!(allowed("MIT"));
        assert!(allowed("GPL-3.0-only OR MIT"));
        assert!(allowed("MIT/GPL-3.0-only"));
        assert!(allowed("Apache-2.0 WITH LLVM-exception OR Apache-2.0"));
        assert!(!allowed("GPL-3.0-only"));
        assert!(!allowed("Apache-2.0"));
    }

    #[test]
    fn every_part_of_a_conjunction_counts() {
        assert!(allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(!allowed("MIT AND GPL-3.0-only"));
        assert!(!allowed("(MIT OR Unicode-3.0) AND GPL-3.0-only"));
        assert!(allowed("GPL-3.0-only AND ISC OR MIT"));
    }

    #[test]
    fn what_does_not_parse_is_not_allowed() {
        for expression in ["", "MIT OR", "(MIT", "MIT)", "MIT MIT", "OR MIT", "MIT WITH"] {
            assert!(!allowed(expression), "{expression}");
        }
    }
}
