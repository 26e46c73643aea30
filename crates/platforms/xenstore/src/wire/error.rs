//! Errors, which travel by name because the numbers differ between systems.

use crate::store::StoreError;

/// An error's name as the store sends it (`xsd_errors`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// Malformed request.
    Einval,
    /// Not permitted.
    Eacces,
    /// Exists already.
    Eexist,
    /// Is a directory.
    Eisdir,
    /// No such node, watch or transaction.
    Enoent,
    /// The store is out of memory.
    Enomem,
    /// A quota was reached.
    Enospc,
    /// The store's own data is damaged.
    Eio,
    /// Has children.
    Enotempty,
    /// The store does not know this request.
    Enosys,
    /// Read only.
    Erofs,
    /// Too many transactions (the OCaml xenstored).
    Ebusy,
    /// The transaction conflicts with another commit.
    Eagain,
    /// The domain is introduced already.
    Eisconn,
    /// Too large: a value, a list of children, the number of watches.
    E2big,
    /// A quota was reached (the OCaml xenstored).
    Equota,
}

impl ErrorCode {
    /// Every error.
    pub const ALL: [Self; 16] = [
        Self::Einval,
        Self::Eacces,
        Self::Eexist,
        Self::Eisdir,
        Self::Enoent,
        Self::Enomem,
        Self::Enospc,
        Self::Eio,
        Self::Enotempty,
        Self::Enosys,
        Self::Erofs,
        Self::Ebusy,
        Self::Eagain,
        Self::Eisconn,
        Self::E2big,
        Self::Equota,
    ];

    /// The name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Einval => "EINVAL",
            Self::Eacces => "EACCES",
            Self::Eexist => "EEXIST",
            Self::Eisdir => "EISDIR",
            Self::Enoent => "ENOENT",
            Self::Enomem => "ENOMEM",
            Self::Enospc => "ENOSPC",
            Self::Eio => "EIO",
            Self::Enotempty => "ENOTEMPTY",
            Self::Enosys => "ENOSYS",
            Self::Erofs => "EROFS",
            Self::Ebusy => "EBUSY",
            Self::Eagain => "EAGAIN",
            Self::Eisconn => "EISCONN",
            Self::E2big => "E2BIG",
            Self::Equota => "EQUOTA",
        }
    }

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
