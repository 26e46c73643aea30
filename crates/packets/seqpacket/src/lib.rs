//! Packets of a fixed size over a `SOCK_SEQPACKET` socket: it keeps packets whole, and descriptors
//! travel beside them. [`remove_socket`] removes the files of Unix sockets of every type.

#![forbid(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socket_with, socketpair,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Descriptors that one packet may carry.
pub const DESCRIPTORS_MAX: usize = 8;

/// A socket that can be connected.
///
/// # Errors
/// The system's.
pub fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Two connected sockets.
///
/// # Errors
/// The system's.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends a packet and copies of descriptors. Never raises SIGPIPE.
///
/// # Errors
/// The system's, or there are more than [`DESCRIPTORS_MAX`] descriptors.
pub fn send<T: IntoBytes + Immutable>(
    socket: impl AsFd,
    packet: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        // There is room for as many.
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(socket, &[IoSlice::new(packet.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Waits for a packet; none if the other side has hung up. Descriptors that come with it are lost.
///
/// The kernel drops them before they become descriptors of this process, and does not flush them as it does when a descriptor is closed: that may wait for a
/// server of FUSE for ever, and neither the thread nor its process can be killed meanwhile.
///
/// # Errors
/// The system's, or the packet has another size.
pub fn receive<T>(socket: impl AsFd) -> io::Result<Option<T>>
where
    T: FromBytes + IntoBytes + KnownLayout,
{
    receive_beside(socket, &mut RecvAncillaryBuffer::default())
}

/// The same with its descriptors, from somebody who is trusted.
///
/// # Errors
/// The system's, or the packet has another size.
pub fn receive_with_descriptors<T>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>>
where
    T: FromBytes + IntoBytes + KnownLayout,
{
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let Some(packet) = receive_beside(socket, &mut control)? else { return Ok(None) };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok(Some((packet, descriptors)))
}

fn receive_beside<T>(
    socket: impl AsFd,
    control: &mut RecvAncillaryBuffer<'_>,
) -> io::Result<Option<T>>
where
    T: FromBytes + IntoBytes + KnownLayout,
{
    let mut packet = T::new_zeroed();
    let size = size_of::<T>();
    let received = {
        let mut parts = [IoSliceMut::new(packet.as_mut_bytes())];
        rustix::io::retry_on_intr(|| {
            recvmsg(&socket, &mut parts, control, RecvFlags::CMSG_CLOEXEC)
        })?
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    // A longer packet is truncated to the right length, so the flag must be checked as well.
    if received.bytes != size || received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet of the wrong size"));
    }
    Ok(Some(packet))
}

/// Removes the file of a socket, if one is there, and no other file.
///
/// A configuration may name any file by mistake, and `connect` refuses a regular file with the same error as a socket that nobody
/// listens at. A symbolic link is not followed: it is no socket. Whoever may write to the folder can still exchange the file between
/// the check and the removal, and could remove it without this process.
///
/// # Errors
/// [`AlreadyExists`](io::ErrorKind::AlreadyExists) if the file is no socket, and the system's.
pub fn remove_socket(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => {
            let why = "a file that is no socket is there, and is left alone";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use lab::TempDir;

    use super::*;

    #[test]
    fn a_socket_is_removed_and_no_other_file() {
        let folder = TempDir::new().unwrap();
        let [socket, file, link, missing] =
            ["socket", "file", "link", "missing"].map(|name| folder.path().join(name));
        let _listener = UnixListener::bind(&socket).unwrap();
        std::fs::write(&file, "precious").unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        for other in [&file, &link, &folder.path().to_owned()] {
            let error = remove_socket(other).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
        assert!(std::fs::symlink_metadata(&link).is_ok() && socket.exists());
        remove_socket(&missing).unwrap();
        remove_socket(&socket).unwrap();
        assert!(!socket.exists());
    }

    #[test]
    fn packets_and_descriptors_cross_the_socket() {
        let (one, two) = pair().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        send(&one, &[7u64, 9], &[writer.as_fd()]).unwrap();
        let (packet, descriptors) = receive_with_descriptors::<[u64; 2]>(&two).unwrap().unwrap();
        assert_eq!(packet, [7, 9]);
        rustix::io::write(&descriptors[0], b"x").unwrap();
        let mut seen = [0; 1];
        rustix::io::read(&reader, &mut seen).unwrap();
        assert_eq!(&seen, b"x");
        // Where they are not wanted the kernel drops them: its end of the pipe closes.
        send(&one, &[8u64, 9], &[writer.as_fd()]).unwrap();
        drop((writer, descriptors));
        assert_eq!(receive::<[u64; 2]>(&two).unwrap(), Some([8, 9]));
        assert_eq!(rustix::io::read(&reader, &mut seen), Ok(0));
        drop(one);
        assert!(receive::<[u64; 2]>(&two).unwrap().is_none());
    }

    #[test]
    fn a_packet_of_another_size_is_an_error() {
        let (one, two) = pair().unwrap();
        send(&one, &[7u8; 15], &[]).unwrap();
        send(&one, &[7u8; 17], &[]).unwrap();
        assert!(receive::<[u64; 2]>(&two).is_err() && receive::<[u64; 2]>(&two).is_err());
        let many: [BorrowedFd<'_>; 9] = [one.as_fd(); 9];
        assert!(send(&one, &[7u64; 2], &many).is_err());
    }
}
