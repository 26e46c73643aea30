//! Which process may be which domain, and what it gets.

use std::fmt;
use std::hint::black_box;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use hypervisor::DomId;
use rustix::net::{Shutdown, shutdown};

use crate::memory::MemorySize;
use crate::share::Share;

/// Who may be a domain, and what happens when one comes or goes.
pub trait Toolstack: Send + Sync + 'static {
    /// What it holds for an admitted guest, such as its name. Dropped when the session has ended.
    type Guest: Send;
    /// Decides about a process that asks to be a guest: what it gets, or why it is refused.
    fn admit(&self, applicant: &Applicant) -> Result<Admitted<Self::Guest>, String>;
    /// The guest was admitted; `session` lasts as long as its domain.
    fn opened(&self, guest: &Self::Guest, session: Session) {
        let _ = (guest, session);
    }
    /// The domain exists and may read the store: make its devices.
    fn created(&self, domain: DomId, guest: &Self::Guest) -> Result<(), String>;
    /// The domain asks for a channel about its contexts of cards. Returns the end for its process, or why
    /// it gets none.
    fn open_contexts(&self, domain: DomId, guest: &Self::Guest) -> Result<OwnedFd, String> {
        let _ = (domain, guest);
        Err("this machine has no cards".to_owned())
    }
    /// The domain's process has gone; its grants are refused already. Free its resources.
    fn destroyed(&self, domain: DomId, guest: &Self::Guest);
}

/// The session of a guest.
#[derive(Clone, Debug)]
pub struct Session(Arc<OwnedFd>);

impl Session {
    pub(crate) fn new(socket: &Arc<OwnedFd>) -> Self {
        Self(Arc::clone(socket))
    }

    /// Ends it, as if the guest's process had gone: its domain ends soon after, on the session's thread.
    pub fn end(&self) {
        // It can only fail when it has ended already.
        let _ = shutdown(&*self.0, Shutdown::Both);
    }
}

/// A guest that may become a domain.
pub struct Admitted<G> {
    /// Its memory.
    pub size: MemorySize,
    /// Its share of the process's limits.
    pub share: Share,
    /// What the toolstack holds for it.
    pub guest: G,
}

/// A process that asks to be a guest.
#[derive(Debug)]
pub struct Applicant {
    /// The name that it claims.
    pub name: String,
    /// The secret that it shows.
    pub token: Option<Token>,
    /// Its process number, from the kernel.
    pub process: u32,
    /// Its user, from the kernel.
    pub user: u32,
}

/// A secret by which a guest's process proves which guest it is.
#[derive(Clone)]
pub struct Token(Box<[u8]>);

/// Bytes of the shortest secret: too many to guess.
const TOKEN_MIN: usize = 16;
/// Bytes of the longest secret, which fits into a packet beside any name.
const TOKEN_MAX: usize = 256;

impl Token {
    /// Reads a secret from a file. White space around it is ignored.
    ///
    /// # Errors
    /// The file cannot be read, has a zero byte, or not 16 to 256 bytes. No error shows the secret.
    pub fn read(path: &Path) -> io::Result<Self> {
        let bytes = std::fs::read(path)?;
        let token = bytes.trim_ascii();
        if !(TOKEN_MIN..=TOKEN_MAX).contains(&token.len()) || token.contains(&0) {
            return Err(io::Error::other(format!(
                "a token has {TOKEN_MIN} to {TOKEN_MAX} bytes and none is zero, for example of `openssl rand -hex 32`"
            )));
        }
        Ok(Self::offered(token))
    }

    /// The bytes that a process shows; they need not be anybody's secret.
    pub(crate) fn offered(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq for Token {
    /// Compares every byte, so that the time does not show how many are right.
    fn eq(&self, other: &Self) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        let differences = pairs.fold(0, |sum, (one, other)| black_box(sum | (one ^ other)));
        self.0.len() == other.0.len() && differences == 0
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_equal_if_all_bytes_are() {
        let token = |text: &str| Token::offered(text.as_bytes());
        assert_eq!(token("0123456789abcdef"), token("0123456789abcdef"));
        for other in ["0123456789abcdeF", "X123456789abcdef", "0123456789abcde", ""] {
            assert_ne!(token("0123456789abcdef"), token(other));
        }
        assert_ne!(token("0123456789abcdef"), token("0123456789abcdef0"));
    }

    #[test]
    fn a_token_is_never_shown() {
        assert_eq!(format!("{:?}", Token::offered(b"0123456789abcdef")), "Token");
        let path = std::env::temp_dir().join(format!("pvnet-token-{}", std::process::id()));
        for text in ["too short", "0123456789\0abcdef", &"x".repeat(257)] {
            std::fs::write(&path, text).unwrap();
            let error = Token::read(&path).unwrap_err().to_string();
            assert!(error.contains("16 to 256 bytes") && !error.contains(text), "{error}");
        }
        std::fs::write(&path, " 0123456789abcdef\n").unwrap();
        assert_eq!(Token::read(&path).unwrap(), Token::offered(b"0123456789abcdef"));
        std::fs::remove_file(&path).unwrap();
    }
}
