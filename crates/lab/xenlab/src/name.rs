//! Names that a user types.

/// A name that stands for nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {kind} {name}: choose one of {known}")]
pub struct UnknownName {
    kind: &'static str,
    name: String,
    known: String,
}

impl UnknownName {
    /// `name` is none of the `known` names of this kind of thing.
    pub(crate) fn new<T: ToString>(kind: &'static str, name: &str, known: &[T]) -> Self {
        let known: Vec<_> = known.iter().map(ToString::to_string).collect();
        Self { kind, name: name.to_owned(), known: known.join(", ") }
    }
}
