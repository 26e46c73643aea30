//! Compressed tables for tests, in the form that the kernels' build tools write, with other tokens.

/// A token's string: most bytes stand for themselves, and a few for longer strings.
pub(crate) fn token(byte: u8) -> String {
    match byte {
        b'!'..=b'~' => char::from(byte).to_string(),
        0x80 => "do_".to_owned(),
        0x81 => "grant".to_owned(),
        0x82 => "context_".to_owned(),
        other => format!("#{other}"),
    }
}

/// Encodes `name`, which begins with the letter of its kind, as a length and tokens.
fn compressed(name: &str) -> Vec<u8> {
    let mut tokens = Vec::new();
    let mut rest = name;
    while let Some(first) = rest.bytes().next() {
        let long = (0x80..=0x82).find(|byte| rest.starts_with(&token(*byte)));
        let byte = long.unwrap_or(first);
        tokens.push(byte);
        rest = &rest[token(byte).len()..];
    }
    let [low, high] = u16::try_from(tokens.len()).expect("short").to_le_bytes();
    let mut bytes =
        if tokens.len() < 0x80 { vec![low] } else { vec![low | 0x80, high << 1 | low >> 7] };
    bytes.extend(tokens);
    bytes
}

/// Whether an order of names lies between the markers and the token table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    Absent,
    Present,
}

/// The table from the number of names to the token index, aligned to `align`.
pub(crate) fn table<'a>(
    names: impl Iterator<Item = &'a str>,
    align: usize,
    order: Order,
) -> Vec<u8> {
    let (mut packed, mut markers, mut count) = (Vec::new(), Vec::new(), 0u32);
    for name in names {
        if count.is_multiple_of(256) {
            markers.extend(u32::try_from(packed.len()).expect("short").to_le_bytes());
        }
        packed.extend(compressed(name));
        count += 1;
    }
    let mut bytes = count.to_le_bytes().to_vec();
    for part in [packed, markers] {
        align_to(&mut bytes, align);
        bytes.extend(part);
    }
    align_to(&mut bytes, align);
    if order == Order::Present {
        (0..count).for_each(|name| bytes.extend(&name.to_be_bytes()[1..]));
        align_to(&mut bytes, align);
    }
    tokens(&mut bytes, align);
    bytes
}

fn tokens(bytes: &mut Vec<u8>, align: usize) {
    let (start, mut index) = (bytes.len(), Vec::new());
    for byte in 0..=255 {
        index.extend(u16::try_from(bytes.len() - start).expect("short").to_le_bytes());
        bytes.extend(token(byte).as_bytes());
        bytes.push(0);
    }
    align_to(bytes, align);
    bytes.extend(index);
}

pub(crate) fn align_to(bytes: &mut Vec<u8>, align: usize) {
    bytes.resize(bytes.len().next_multiple_of(align), 0);
}

/// An ELF file of 64 bits (`wide`) or 32, whose only segment, executable, is `body` at `address`.
pub(crate) fn elf(wide: bool, address: u64, body: &[u8]) -> Vec<u8> {
    let len = u64::try_from(body.len()).expect("short");
    let (header, segment): (u16, u16) = if wide { (64, 56) } else { (52, 32) };
    // The body is aligned in the file as in memory.
    let offset = 128u64;
    let mut file = vec![0x7f, b'E', b'L', b'F', if wide { 2 } else { 1 }, 1, 1];
    file.resize(16, 0);
    let word = |file: &mut Vec<u8>, value: u64| {
        file.extend(&value.to_le_bytes()[..if wide { 8 } else { 4 }]);
    };
    // Executable, for x86, version 1.
    let machine = if wide { 62u16 } else { 3 };
    file.extend([2, 0]);
    file.extend(machine.to_le_bytes());
    file.extend(1u32.to_le_bytes());
    for value in [address, header.into(), 0] {
        word(&mut file, value);
    }
    file.extend(0u32.to_le_bytes());
    for half in [header, segment, 1, 0, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1u32.to_le_bytes());
    if wide {
        file.extend(5u32.to_le_bytes());
    }
    for value in [offset, address, address, len, len] {
        word(&mut file, value);
    }
    if !wide {
        file.extend(5u32.to_le_bytes());
    }
    word(&mut file, 1);
    align_to(&mut file, 128);
    file.extend(body);
    file
}
