//! Errors, which travel by name because the numbers differ between systems.

use crate::store::StoreError;

named::named! {
    /// An error's name as the store sends it (`xsd_errors`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum ErrorCode {
        /// Malformed request.
        Einval => "EINVAL",
        /// Not permitted.
        Eacces => "EACCES",
        /// Exists already.
        Eexist => "EEXIST",
        /// Is a directory.
        Eisdir => "EISDIR",
        /// No such node, watch or transaction.
        Enoent => "ENOENT",
        /// The store is out of memory.
        Enomem => "ENOMEM",
        /// A quota was reached.
        Enospc => "ENOSPC",
        /// The store's own data is damaged.
        Eio => "EIO",
        /// Has children.
        Enotempty => "ENOTEMPTY",
        /// The store does not know this request.
        Enosys => "ENOSYS",
        /// Read only.
        Erofs => "EROFS",
        /// Too many transactions (the OCaml xenstored).
        Ebusy => "EBUSY",
        /// The transaction conflicts with another commit.
        Eagain => "EAGAIN",
        /// The domain is introduced already.
        Eisconn => "EISCONN",
        /// Too large: a value, a list of children, the number of watches.
        E2big => "E2BIG",
        /// A quota was reached (the OCaml xenstored).
        Equota => "EQUOTA",
    }
}

impl ErrorCode {
    /// The error of this name. For an unknown name use [`ErrorCode::Einval`], as libxenstore does.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.name() == name)
    }

    /// What the error means for a request about `subject` (a path, mostly).
    #[must_use]
    pub fn about(self, subject: &str) -> StoreError {
        let subject = subject.to_owned();
        match self {
            Self::Enoent => StoreError::NotFound(subject),
            Self::Eacces | Self::Erofs => StoreError::Denied(subject),
            Self::Eexist | Self::Eisconn => StoreError::Exists(subject),
            Self::Eagain => StoreError::Conflict,
            Self::Enospc | Self::E2big | Self::Enomem | Self::Ebusy | Self::Equota => {
                StoreError::Quota(self.name())
            }
            Self::Einval => StoreError::Invalid(subject),
            Self::Eisdir | Self::Eio | Self::Enotempty | Self::Enosys => {
                StoreError::Invalid(format!("{subject} ({})", self.name()))
            }
        }
    }
}

impl From<StoreError> for ErrorCode {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound(_) => Self::Enoent,
            StoreError::Denied(_) => Self::Eacces,
            StoreError::Invalid(_) => Self::Einval,
            StoreError::Conflict => Self::Eagain,
            StoreError::Exists(_) => Self::Eexist,
            StoreError::Quota(_) => Self::Enospc,
            StoreError::Gone(_) => Self::Eio,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_name(code.name()), Some(code));
        }
        assert_eq!(ErrorCode::from_name("enoent"), None);
    }

    #[test]
    fn errors_survive_the_wire() {
        let errors = [
            StoreError::NotFound("k".into()),
            StoreError::Denied("k".into()),
            StoreError::Invalid("k".into()),
            StoreError::Exists("k".into()),
            StoreError::Conflict,
            StoreError::Quota("ENOSPC"),
        ];
        for error in errors {
            assert_eq!(ErrorCode::from(error.clone()).about("k"), error);
        }
    }
}
