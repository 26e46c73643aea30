//! Paths: what a key may be called.

use hypervisor::DomId;

use crate::store::{ABS_PATH_MAX, REL_PATH_MAX, StoreError};

/// A valid absolute path: `/` or `/name/name...`, of allowed characters, not too long.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AbsPath(String);

impl AbsPath {
    /// The root of the tree.
    #[must_use]
    pub fn root() -> Self {
        Self("/".to_owned())
    }

    /// The path of a domain's own part of the tree, where its relative paths start.
    #[must_use]
    pub fn home(domid: DomId) -> Self {
        Self(format!("/local/domain/{domid}"))
    }

    /// Makes a path of `caller` absolute.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if it breaks a rule: a character other than ASCII
    /// alphanumerics and `-/_@`, an empty name (`//`, a trailing `/`, no path at all), more
    /// than [`ABS_PATH_MAX`] bytes, or [`REL_PATH_MAX`] for a relative path.
    pub fn resolve(caller: DomId, path: &str) -> Result<Self, StoreError> {
        if path == "/" {
            return Ok(Self::root());
        }
        let (names, longest) = match path.strip_prefix('/') {
            Some(names) => (names, ABS_PATH_MAX),
            None => (path, REL_PATH_MAX),
        };
        // A leading `@` names a special watch; it does not start a relative path.
        let valid =
            path.len() <= longest && !path.starts_with('@') && names.split('/').all(is_name);
        if !valid {
            return Err(StoreError::Invalid(path.to_owned()));
        }
        if path.starts_with('/') {
            Ok(Self(path.to_owned()))
        } else {
            Ok(Self(format!("{}/{path}", Self::home(caller).0)))
        }
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The names from the root on; none for the root itself.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }

    /// The path without its last name; none for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        match self.0.rsplit_once('/')? {
            ("", "") => None,
            ("", _) => Some(Self::root()),
            (parent, _) => Some(Self(parent.to_owned())),
        }
    }
}

/// Whether `path` is `ancestor` or lies below it. Both absolute or both relative.
#[must_use]
pub fn is_at_or_below(path: &str, ancestor: &str) -> bool {
    if ancestor == "/" {
        // Special watches such as `@releaseDomain` are not part of the tree.
        return path.starts_with('/');
    }
    path.strip_prefix(ancestor).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether this is the name of a special watch, such as `@introduceDomain`.
#[must_use]
pub fn is_special(path: &str) -> bool {
    path.strip_prefix('@').is_some_and(is_name)
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_@".contains(&byte);
    !name.is_empty() && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn resolve(path: &str) -> Option<String> {
        AbsPath::resolve(DomId(7), path).ok().map(|path| path.0)
    }

    #[test]
    fn relative_paths_start_at_home() {
        assert_eq!(resolve("device/vif").unwrap(), "/local/domain/7/device/vif");
        assert_eq!(resolve("/tool/x").unwrap(), "/tool/x");
        assert_eq!(resolve("/").unwrap(), "/");
    }

    #[test]
    fn malformed_paths_are_refused() {
        for wrong in
            ["", "//", "/a//b", "/a/", "a/", "/a b", "/a\0", "/é", "/a.b", "/a:b", "@", "@a"]
        {
            assert_eq!(resolve(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn lengths_are_bounded() {
        let absolute = |len: usize| format!("/{}", "a".repeat(len - 1));
        assert!(resolve(&absolute(ABS_PATH_MAX)).is_some());
        assert!(resolve(&absolute(ABS_PATH_MAX + 1)).is_none());
        assert!(resolve(&"a".repeat(REL_PATH_MAX)).is_some());
        assert!(resolve(&"a".repeat(REL_PATH_MAX + 1)).is_none());
    }

    #[test]
    fn parents_end_at_the_root() {
        let path = AbsPath::resolve(DomId(0), "/a/b").unwrap();
        let parent = path.parent().unwrap();
        assert_eq!(parent.as_str(), "/a");
        let root = parent.parent().unwrap();
        assert_eq!(root.as_str(), "/");
        assert_eq!(root.parent(), None);
        assert_eq!(root.names().count(), 0);
        assert_eq!(path.names().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn below_means_by_whole_names() {
        assert!(is_at_or_below("/a/b", "/a"));
        assert!(is_at_or_below("/a", "/a"));
        assert!(is_at_or_below("/a", "/"));
        assert!(!is_at_or_below("/ab", "/a"));
        assert!(!is_at_or_below("/a", "/a/b"));
        assert!(!is_at_or_below("@releaseDomain", "/"));
    }

    #[test]
    fn special_watches_have_a_name() {
        assert!(is_special("@introduceDomain"));
        assert!(!is_special("@"));
        assert!(!is_special("@a/b"));
        assert!(!is_special("/a"));
    }

    proptest! {
        #[test]
        fn resolving_is_idempotent(path in "[/a-c@. ]{0,12}") {
            if let Some(absolute) = resolve(&path) {
                prop_assert_eq!(resolve(&absolute), Some(absolute.clone()));
                prop_assert!(absolute.starts_with('/'));
            }
        }
    }
}
