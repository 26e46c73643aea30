//! Requests: what a client asks.

use hypervisor::DomId;

use super::{ErrorCode, Kind, Message, WireError, permissions, text};
use crate::store::Permissions;

/// A request, its strings borrowed from the message or the caller.
///
/// Parsing checks the shape only; whether a path is valid depends on who asks
/// ([`AbsPath::resolve`](super::AbsPath::resolve)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the protocol's, named in its document")]
pub enum Request<'a> {
    /// DIRECTORY
    Directory { path: &'a str },
    /// DIRECTORY_PART: children from the byte `offset` of the whole list on.
    DirectoryPart { path: &'a str, offset: usize },
    /// READ
    Read { path: &'a str },
    /// GET_PERMS
    GetPerms { path: &'a str },
    /// SET_PERMS
    SetPerms { path: &'a str, permissions: Permissions },
    /// WRITE; the value is octets, which may hold NUL.
    Write { path: &'a str, value: &'a [u8] },
    /// MKDIR
    Mkdir { path: &'a str },
    /// RM
    Rm { path: &'a str },
    /// WATCH
    Watch { path: &'a str, token: &'a str },
    /// UNWATCH
    Unwatch { path: &'a str, token: &'a str },
    /// RESET_WATCHES
    ResetWatches,
    /// TRANSACTION_START
    TransactionStart,
    /// TRANSACTION_END
    TransactionEnd { commit: bool },
    /// INTRODUCE; `mfn` and `evtchn` are decimal numbers, for a store that maps the ring.
    Introduce { domid: DomId, mfn: &'a str, evtchn: &'a str },
    /// RELEASE
    Release { domid: DomId },
    /// GET_DOMAIN_PATH
    GetDomainPath { domid: DomId },
    /// IS_DOMAIN_INTRODUCED
    IsDomainIntroduced { domid: DomId },
    /// RESUME
    Resume { domid: DomId },
    /// SET_TARGET
    SetTarget { domid: DomId, target: DomId },
}

impl<'a> Request<'a> {
    /// Reads a request from its message.
    ///
    /// # Errors
    /// [`ErrorCode::Enosys`] for an unknown request, [`ErrorCode::Einval`] for a payload of the
    /// wrong shape. Neither harms the stream: answer and continue, since clients probe for newer
    /// requests this way.
    pub fn parse(message: &'a Message) -> Result<Self, ErrorCode> {
        let payload = message.payload();
        let path = || text::single(payload);
        let domid = || text::single(payload).and_then(text::number).map(DomId);
        Ok(match message.kind().ok_or(ErrorCode::Enosys)? {
            Kind::Directory => Self::Directory { path: path()? },
            Kind::Read => Self::Read { path: path()? },
            Kind::GetPerms => Self::GetPerms { path: path()? },
            Kind::Mkdir => Self::Mkdir { path: path()? },
            Kind::Rm => Self::Rm { path: path()? },
            Kind::DirectoryPart => parse_directory_part(payload)?,
            Kind::SetPerms => parse_set_perms(payload)?,
            Kind::Write => parse_write(payload)?,
            Kind::Watch => parse_watch(payload).map(|(path, token)| Self::Watch { path, token })?,
            Kind::Unwatch => {
                parse_watch(payload).map(|(path, token)| Self::Unwatch { path, token })?
            }
            Kind::ResetWatches => Self::ResetWatches,
            Kind::TransactionStart => Self::TransactionStart,
            Kind::TransactionEnd => parse_transaction_end(payload)?,
            Kind::Introduce => parse_introduce(payload)?,
            Kind::SetTarget => parse_set_target(payload)?,
            Kind::Release => Self::Release { domid: domid()? },
            Kind::GetDomainPath => Self::GetDomainPath { domid: domid()? },
            Kind::IsDomainIntroduced => Self::IsDomainIntroduced { domid: domid()? },
            Kind::Resume => Self::Resume { domid: domid()? },
            Kind::WatchEvent | Kind::Error => return Err(ErrorCode::Enosys),
        })
    }

    /// The request as a message.
    ///
    /// # Errors
    /// [`WireError`] if a string holds a NUL or the whole is too long.
    pub fn message(&self, req_id: u32, tx_id: u32) -> Result<Message, WireError> {
        Message::new(self.kind(), req_id, tx_id, self.payload()?)
    }

    /// The request's message type; a successful reply has the same.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Directory { .. } => Kind::Directory,
            Self::DirectoryPart { .. } => Kind::DirectoryPart,
            Self::Read { .. } => Kind::Read,
            Self::GetPerms { .. } => Kind::GetPerms,
            Self::SetPerms { .. } => Kind::SetPerms,
            Self::Write { .. } => Kind::Write,
            Self::Mkdir { .. } => Kind::Mkdir,
            Self::Rm { .. } => Kind::Rm,
            Self::Watch { .. } => Kind::Watch,
            Self::Unwatch { .. } => Kind::Unwatch,
            Self::ResetWatches => Kind::ResetWatches,
            Self::TransactionStart => Kind::TransactionStart,
            Self::TransactionEnd { .. } => Kind::TransactionEnd,
            Self::Introduce { .. } => Kind::Introduce,
            Self::Release { .. } => Kind::Release,
            Self::GetDomainPath { .. } => Kind::GetDomainPath,
            Self::IsDomainIntroduced { .. } => Kind::IsDomainIntroduced,
            Self::Resume { .. } => Kind::Resume,
            Self::SetTarget { .. } => Kind::SetTarget,
        }
    }

    /// What the request is about, for error messages: its path, where it has one.
    #[must_use]
    pub fn subject(&self) -> &'a str {
        match self {
            Self::Directory { path }
            | Self::DirectoryPart { path, .. }
            | Self::Read { path }
            | Self::GetPerms { path }
            | Self::SetPerms { path, .. }
            | Self::Write { path, .. }
            | Self::Mkdir { path }
            | Self::Rm { path }
            | Self::Watch { path, .. }
            | Self::Unwatch { path, .. } => path,
            Self::TransactionStart | Self::TransactionEnd { .. } => "transaction",
            Self::ResetWatches => "watches",
            Self::Introduce { .. }
            | Self::Release { .. }
            | Self::GetDomainPath { .. }
            | Self::IsDomainIntroduced { .. }
            | Self::Resume { .. }
            | Self::SetTarget { .. } => "domain",
        }
    }

    fn payload(&self) -> Result<Vec<u8>, WireError> {
        match self {
            Self::Directory { path }
            | Self::Read { path }
            | Self::GetPerms { path }
            | Self::Mkdir { path }
            | Self::Rm { path } => text::join([*path]),
            Self::DirectoryPart { path, offset } => text::join([*path, &offset.to_string()]),
            Self::SetPerms { path, permissions } => {
                let entries = permissions::to_texts(permissions);
                text::join(std::iter::once(*path).chain(entries.iter().map(String::as_str)))
            }
            Self::Write { path, value } => {
                let mut payload = text::join([*path])?;
                payload.extend_from_slice(value);
                Ok(payload)
            }
            Self::Watch { path, token } | Self::Unwatch { path, token } => {
                text::join([*path, *token])
            }
            // A request without arguments carries one empty string, as the protocol's document
            // says.
            Self::ResetWatches | Self::TransactionStart => text::join([""]),
            Self::TransactionEnd { commit } => text::join([if *commit { "T" } else { "F" }]),
            Self::Introduce { domid, mfn, evtchn } => {
                text::join([&domid.to_string(), *mfn, *evtchn])
            }
            Self::Release { domid }
            | Self::GetDomainPath { domid }
            | Self::IsDomainIntroduced { domid }
            | Self::Resume { domid } => text::join([domid.to_string().as_str()]),
            Self::SetTarget { domid, target } => {
                text::join([domid.to_string().as_str(), target.to_string().as_str()])
            }
        }
    }
}

fn parse_directory_part(payload: &[u8]) -> Result<Request<'_>, ErrorCode> {
    match text::split(payload)?[..] {
        [path, offset] => Ok(Request::DirectoryPart { path, offset: text::number(offset)? }),
        _ => Err(ErrorCode::Einval),
    }
}

fn parse_set_perms(payload: &[u8]) -> Result<Request<'_>, ErrorCode> {
    let texts = text::split(payload)?;
    let (path, entries) = texts.split_first().ok_or(ErrorCode::Einval)?;
    Ok(Request::SetPerms { path, permissions: permissions::from_texts(entries)? })
}

fn parse_write(payload: &[u8]) -> Result<Request<'_>, ErrorCode> {
    let end = payload.iter().position(|&byte| byte == 0);
    let (path, value) = payload.split_at(end.ok_or(ErrorCode::Einval)?);
    Ok(Request::Write {
        path: str::from_utf8(path).map_err(|_| ErrorCode::Einval)?,
        value: &value[1..],
    })
}

/// Path and token. A third string is reserved; later versions have a depth there, which is not served.
fn parse_watch(payload: &[u8]) -> Result<(&str, &str), ErrorCode> {
    match text::split(payload)?[..] {
        [path, token] | [path, token, ""] => Ok((path, token)),
        _ => Err(ErrorCode::Einval),
    }
}

fn parse_transaction_end(payload: &[u8]) -> Result<Request<'_>, ErrorCode> {
    let commit = match text::single(payload)? {
        "T" => true,
        "F" => false,
        _ => return Err(ErrorCode::Einval),
    };
    Ok(Request::TransactionEnd { commit })
}

fn parse_introduce(payload: &[u8]) -> Result<Request<'_>, ErrorCode> {
    match text::split(payload)?[..] {
        [domid, mfn, evtchn] | [domid, mfn, evtchn, _] => {
            Ok(Request::Introduce { domid: DomId(text::number(domid)?), mfn, evtchn })
        }
        _ => Err(ErrorCode::Einval),
    }
}

fn parse_set_target(payload: &[u8]) -> Result<Request<'_>, ErrorCode> {
    match text::split(payload)?[..] {
        [domid, target] => Ok(Request::SetTarget {
            domid: DomId(text::number(domid)?),
            target: DomId(text::number(target)?),
        }),
        _ => Err(ErrorCode::Einval),
    }
}

#[cfg(test)]
mod tests;
