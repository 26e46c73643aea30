//! A call, as a private copy of what the guest wrote.

use std::sync::atomic::Ordering;

use cdna::Descriptor;
use cdna::call::{ANSWER, Answer, ENTRIES, ENTRIES_MAX, HEADER, Header, MapEntry, Operation};
use shm::{OutOfBounds, Region};
use zerocopy::{IntoBytes, transmute_ref};

/// A call that has no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a malformed call")]
pub struct MalformedCall {
    /// The guest's number for it.
    pub serial: u32,
}

/// Writes the answer of a call: its serial number last, since the guest polls it.
///
/// # Errors
/// The page is too short.
pub fn write_answer(page: &Region, answer: Answer) -> Result<(), OutOfBounds> {
    let rest = [answer.status, answer.value, answer.reserved];
    page.write(ANSWER + size_of::<u32>(), rest)?;
    page.atomic_u32(ANSWER)?.store(answer.serial, Ordering::Release);
    Ok(())
}

/// Room for a call. It can be used again for each call of a guest.
#[derive(Debug)]
pub struct Call {
    operation: Operation,
    serial: u32,
    count: usize,
    /// Descriptors or mappings: the same bytes.
    entries: [Descriptor; ENTRIES_MAX],
}

impl Default for Call {
    fn default() -> Self {
        let entries = [Descriptor::default(); ENTRIES_MAX];
        Self { operation: Operation::EnqueueTx, serial: 0, count: 0, entries }
    }
}

impl Call {
    /// Copies a call out of its page: the header once, then as many entries as that copy says.
    ///
    /// # Errors
    /// There is no such operation, there are too many entries, or the page is too short.
    pub fn copy(&mut self, page: &Region) -> Result<(), MalformedCall> {
        let header: Header = page.read(HEADER).map_err(|_| MalformedCall { serial: 0 })?;
        (self.serial, self.count) = (header.serial, 0);
        let malformed = MalformedCall { serial: header.serial };
        let operation = Operation::from_number(header.operation).ok_or(malformed)?;
        let count = header.count as usize;
        let entries = self.entries.get_mut(..count).ok_or(malformed)?;
        page.copy_out(ENTRIES, entries.as_mut_bytes()).map_err(|_| malformed)?;
        (self.operation, self.count) = (operation, count);
        Ok(())
    }

    /// What the guest asks for.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The guest's number for this call.
    #[must_use]
    pub fn serial(&self) -> u32 {
        self.serial
    }

    /// Its entries as descriptors.
    #[must_use]
    pub fn descriptors(&self) -> &[Descriptor] {
        &self.entries[..self.count]
    }

    /// Its entries as pages to be mapped or unmapped.
    #[must_use]
    pub fn mappings(&self) -> &[MapEntry] {
        let entries: &[MapEntry; ENTRIES_MAX] = transmute_ref!(&self.entries);
        &entries[..self.count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(operation: u32, count: u32) -> Region {
        let page = Region::anonymous(4096).unwrap();
        let header = Header { operation, count, serial: 77, reserved: 0 };
        page.write(HEADER, header).unwrap();
        page
    }

    #[test]
    fn a_call_is_what_the_page_had_when_it_was_copied() {
        let page = page(4, 2);
        let entry = MapEntry { machine_page: 0, page: 5, pages: 6, permission: 0 };
        page.write(ENTRIES + 16, entry).unwrap();
        let mut call = Call::default();
        call.copy(&page).unwrap();
        page.zero(0, 4096).unwrap();
        assert_eq!((call.operation(), call.serial()), (Operation::Unmap, 77));
        assert_eq!(call.mappings(), [MapEntry::default(), entry]);
        assert_eq!(call.descriptors().len(), 2);
    }

    #[test]
    fn an_answer_lies_where_the_guest_polls() {
        let page = page(1, 0);
        let answer = Answer { serial: 5, status: 6, value: 7, reserved: 0 };
        write_answer(&page, answer).unwrap();
        assert_eq!(page.read(ANSWER), Ok(answer));
        assert!(write_answer(&Region::anonymous(ANSWER).unwrap(), answer).is_err());
    }

    #[test]
    fn counts_and_operations_that_do_not_exist_are_malformed() {
        let mut call = Call::default();
        call.copy(&page(1, 64)).unwrap();
        assert_eq!(call.descriptors().len(), 64);
        for (operation, count) in [(0, 1), (5, 1), (u32::MAX, 1), (1, 65), (3, u32::MAX)] {
            let malformed = MalformedCall { serial: 77 };
            assert_eq!(call.copy(&page(operation, count)), Err(malformed));
            assert!(call.descriptors().is_empty(), "nothing of the call before");
        }
        assert!(call.copy(&Region::anonymous(8).unwrap()).is_err());
    }
}
