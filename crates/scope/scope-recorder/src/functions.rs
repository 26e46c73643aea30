//! Where functions begin, as far as it is known before the recording: those of Xen and of the kernel's image.

/// How the execution enters a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntryKind {
    /// A call or a jump only.
    #[default]
    None,
    /// A system call.
    SystemCall,
    /// An exception.
    Exception,
    /// An interrupt.
    Interrupt,
    /// An interrupt, at any address of the function: it is a table of entries.
    InterruptTable,
    /// A call or a jump. The function is a thunk: it goes on at once to the function that is meant, as for indirect calls without speculation.
    Thunk,
}

impl EntryKind {
    const ALL: [Self; 6] = [
        Self::None,
        Self::SystemCall,
        Self::Exception,
        Self::Interrupt,
        Self::InterruptTable,
        Self::Thunk,
    ];
}

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFunction {
    /// Its number.
    pub number: u32,
    /// The address where it begins.
    pub start: u64,
    /// How the execution comes to it.
    pub entry: EntryKind,
}

/// The known functions, in the order of their addresses.
#[derive(Clone, Debug, Default)]
pub struct Functions {
    starts: Vec<u64>,
    /// None where the functions before it end.
    entries: Vec<Option<EntryKind>>,
}

impl Functions {
    /// The bytes of a function in a file: its address, and the number of its entry kind.
    const RECORD: usize = 9;
    const END: u8 = u8::MAX;

    /// Functions at these addresses; none where the functions before an address end.
    #[must_use]
    pub fn new(functions: impl IntoIterator<Item = (u64, Option<EntryKind>)>) -> Self {
        let mut functions: Vec<_> = functions.into_iter().collect();
        // If an address has several names, one that is an entry counts. An end does not count where another function begins.
        functions.sort_by_key(|(start, entry)| {
            (*start, std::cmp::Reverse(entry.map(|entry| entry as u8)))
        });
        functions.dedup_by_key(|(start, _)| *start);
        let (starts, entries) = functions.into_iter().unzip();
        Self { starts, entries }
    }

    /// The function at an address.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<KnownFunction> {
        let number = self.starts.partition_point(|start| *start <= address).checked_sub(1)?;
        let (start, entry) = (*self.starts.get(number)?, (*self.entries.get(number)?)?);
        Some(KnownFunction { number: u32::try_from(number).ok()?, start, entry })
    }

    /// The bytes of a file with these functions.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let records = self.starts.iter().zip(&self.entries);
        let bytes = records.flat_map(|(start, entry)| {
            let number = entry.map_or(Self::END, |entry| entry as u8);
            start.to_le_bytes().into_iter().chain([number])
        });
        bytes.collect()
    }

    /// The functions in the bytes of a file.
    ///
    /// # Errors
    /// In words, if it is another file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let (records, rest) = bytes.as_chunks::<{ Self::RECORD }>();
        let function = |record: &[u8; Self::RECORD]| {
            let (start, number) = (record.first_chunk()?, record[Self::RECORD - 1]);
            let entry = match number {
                Self::END => None,
                number => Some(*EntryKind::ALL.get(usize::from(number))?),
            };
            Some((u64::from_le_bytes(*start), entry))
        };
        let functions: Option<Vec<_>> = records.iter().map(function).collect();
        match functions {
            Some(functions) if rest.is_empty() => Ok(Self::new(functions)),
            _ => Err("this is no list of functions".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_function_before_it_until_the_end() {
        let functions = Functions::new([
            (0x300, None),
            (0x100, Some(EntryKind::None)),
            (0x200, None),
            (0x200, Some(EntryKind::None)),
            (0x200, Some(EntryKind::Interrupt)),
        ]);
        let back = Functions::from_bytes(&functions.to_bytes()).unwrap();
        for functions in [functions, back] {
            assert_eq!(functions.at(0xff), None);
            let at = |address| functions.at(address).unwrap();
            assert_eq!((at(0x100).start, at(0x1ff).start, at(0x2ff).start), (0x100, 0x100, 0x200));
            assert_eq!((at(0x1ff).entry, at(0x200).entry), (EntryKind::None, EntryKind::Interrupt));
            assert_ne!(at(0x100).number, at(0x200).number);
            assert_eq!(functions.at(0x300), None);
        }
        assert!(Functions::from_bytes(&[0; 10]).is_err());
        assert!(Functions::from_bytes(&[7; 9]).is_err());
    }
}
