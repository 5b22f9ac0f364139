//! Members of tar archives in memory, the same for the same content.

/// Headers, and the places where content begins, are multiples of this.
const BLOCK: usize = 512;
const NAME_BYTES: usize = 100;
const SIZE: std::ops::Range<usize> = 124..136;
const CHECKSUM: std::ops::Range<usize> = 148..156;
/// Eleven octal digits.
const SIZE_MAX: usize = (1 << 33) - 1;

/// Content that is too large for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

/// Appends a member whose content `fill` appends.
pub(super) fn append_member<E: From<TooLarge>>(
    archive: &mut Vec<u8>,
    name: &[u8],
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    if name.len() > NAME_BYTES {
        // Its length counts its own digits.
        let rest = " path=\n".len() + name.len();
        let length = (1..).map(|digits| rest + digits).find(|length| length.to_string().len() + rest == *length);
        append(archive, b"long-name", b'x', |content| {
            content.extend_from_slice(format!("{} path=", length.unwrap_or_default()).as_bytes());
            content.extend_from_slice(name);
            content.push(b'\n');
            Ok::<_, E>(())
        })?;
    }
    append(archive, &name[..name.len().min(NAME_BYTES)], b'0', fill)
}

/// Appends the end of an archive.
pub(super) fn append_end(archive: &mut Vec<u8>) {
    archive.resize(archive.len() + 2 * BLOCK, 0);
}

fn append<E: From<TooLarge>>(
    archive: &mut Vec<u8>,
    name: &[u8],
    kind: u8,
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let at = archive.len();
    archive.resize(at + BLOCK, 0);
    fill(archive)?;
    let size = archive.len() - at - BLOCK;
    if size > SIZE_MAX {
        return Err(TooLarge.into());
    }
    archive.resize(at + BLOCK + size.next_multiple_of(BLOCK), 0);
    let header = &mut archive[at..at + BLOCK];
    header[..name.len()].copy_from_slice(name);
    header[100..108].copy_from_slice(b"0000444\0");
    header[108..116].copy_from_slice(b"0000000\0");
    header[116..124].copy_from_slice(b"0000000\0");
    put_octal(&mut header[SIZE], size, 11);
    // The time of change would not be the same in a second run.
    header[136..148].copy_from_slice(b"00000000000\0");
    header[156] = kind;
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[329..337].copy_from_slice(b"0000000\0");
    header[337..345].copy_from_slice(b"0000000\0");
    header[CHECKSUM].fill(b' ');
    let sum = header.iter().map(|byte| usize::from(*byte)).sum();
    put_octal(&mut header[CHECKSUM], sum, 6);
    Ok(())
}

/// Writes a number with so many digits, and a zero.
fn put_octal(field: &mut [u8], number: usize, digits: usize) {
    for (at, place) in field[..digits].iter_mut().rev().enumerate() {
        *place = b'0' + (number >> (3 * at) & 7) as u8;
    }
    field[digits] = 0;
}
