//! JPEG files.

use forebay_jpeg::{Error, Header, Region, Scale, Scratch, decode_scaled};

/// Larger images take long and show nothing new.
const PIXELS_MAX: usize = 1 << 17;

/// Decodes a file at each scale, whole and in part. All must agree on whether the file is damaged, a part must have the
/// pixels of the whole, and memory must follow from the size that the header gives.
pub fn jpeg(data: &[u8]) -> bool {
    let Ok(header) = Header::read(data) else { return false };
    if header.height * header.width > PIXELS_MAX {
        return false;
    }
    let mut scratch = Scratch::default();
    let mut first: Option<Result<(), Error>> = None;
    for scale in Scale::ALL {
        let all = header.scaled(scale);
        let mut pixels = vec![0; all.height * all.width * 3];
        let decoded = decode_scaled(data, all, scale, &mut pixels, &mut scratch);
        assert_eq!(*first.get_or_insert(decoded), decoded, "{scale:?} disagrees with the whole size");
        let part = Region { top: all.height / 3, left: all.width / 2, height: all.height.div_ceil(2), width: 1 };
        let mut some = vec![0; part.height * part.width * 3];
        let again = decode_scaled(data, part, scale, &mut some, &mut scratch);
        assert_eq!(again, decoded, "a part at {scale:?} disagrees with the whole");
        if decoded.is_ok() {
            for row in 0..part.height {
                let at = ((part.top + row) * all.width + part.left) * 3;
                assert_eq!(some[row * 3..][..3], pixels[at..][..3], "row {row} of a part at {scale:?} differs");
            }
        }
    }
    // MCUs have at most 32 x 32 pixels; each of four components has coefficients of two bytes and samples of one.
    let padded = header.height.next_multiple_of(32) * header.width.next_multiple_of(32);
    let limit = 16 * padded + 4 * data.len() + (1 << 20);
    assert!(scratch.bytes() <= limit, "{} bytes for {} x {}", scratch.bytes(), header.width, header.height);
    first.is_some_and(|decoded| decoded.is_ok())
}
