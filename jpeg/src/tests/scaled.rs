//! Images at half, a quarter and an eighth of their size.

use super::{Draws, cut, expected, file, fnv, pixels, portable};
use crate::{Error, Header, Region, Scale, Scratch, decode_scaled};

const REDUCED: [Scale; 3] = [Scale::Half, Scale::Quarter, Scale::Eighth];

pub(super) fn scaled(file: &[u8], region: Region, scale: Scale, scratch: &mut Scratch) -> Result<Vec<u8>, Error> {
    let mut out = vec![0; region.height * region.width * 3];
    decode_scaled(file, region, scale, &mut out, scratch).map(|()| out)
}

#[test]
fn sides_are_divided_rounding_up() {
    let mut header = Header::read(&file("tiny")).unwrap();
    (header.height, header.width) = (1, 17);
    let sides = Scale::ALL.map(|scale| (header.scaled(scale).height, header.scaled(scale).width));
    assert_eq!(sides, [(1, 17), (1, 9), (1, 5), (1, 3)]);
}

#[test]
fn reduced_pixels_are_those_of_pillow() {
    for mut scratch in [Scratch::default(), portable()] {
        for line in include_str!("../../testdata/scaled.txt").lines() {
            let (name, hashes) = line.split_once(' ').unwrap();
            let file = file(name);
            let header = Header::read(&file).unwrap();
            for (scale, hash) in REDUCED.into_iter().zip(hashes.split(' ')) {
                let picture = scaled(&file, header.scaled(scale), scale, &mut scratch).unwrap();
                assert_eq!(format!("{:016x}", fnv(&picture)), hash, "{name} {scale:?}");
            }
        }
    }
}

#[test]
fn a_region_has_the_pixels_of_the_whole_at_any_scale() {
    let mut draws = Draws(11);
    let mut scratches = [Scratch::default(), portable()];
    for (name, ..) in expected() {
        let file = file(name);
        let header = Header::read(&file).unwrap();
        for scale in REDUCED {
            let whole = header.scaled(scale);
            let picture = scaled(&file, whole, scale, &mut scratches[0]).unwrap();
            for at in 0..40 {
                let region = draws.region(whole.height, whole.width);
                let got = scaled(&file, region, scale, &mut scratches[at % 2]).unwrap();
                assert!(got == cut(&picture, whole.width, region), "{name} {scale:?} {region:?}");
            }
        }
    }
}

#[test]
fn a_region_must_fit_the_scaled_picture() {
    let file = file("tiny");
    let mut scratch = Scratch::default();
    let whole = Header::read(&file).unwrap().scaled(Scale::Half);
    for region in [Region { top: 1, ..whole }, Region { left: 1, ..whole }, Region { width: 0, ..whole }] {
        assert_eq!(scaled(&file, region, Scale::Half, &mut scratch), Err(Error::Region));
    }
    assert_eq!(decode_scaled(&file, whole, Scale::Half, &mut [0; 9], &mut scratch), Err(Error::Region));
}

#[test]
fn every_truncation_is_the_same_error_at_any_scale() {
    let mut scratch = Scratch::default();
    for name in ["tiny", "420_p_60_2x3", "RGB_restart_marker_blocks_optimize", "CMYK_quality"] {
        let file = file(name);
        let header = Header::read(&file).unwrap();
        for len in 0..file.len() {
            let whole = pixels(&file[..len], header.scaled(Scale::Whole), &mut scratch).unwrap_err();
            for scale in REDUCED {
                let got = scaled(&file[..len], header.scaled(scale), scale, &mut scratch);
                assert_eq!(got, Err(whole), "{len} bytes of {name}, {scale:?}");
            }
        }
    }
}

/// A damaged file gives the same error as at full size, or the same pixels by all implementations.
#[test]
fn damage_is_told_the_same_way_at_any_scale() {
    let mut draws = Draws(23);
    let mut scratches = [Scratch::default(), portable()];
    let (mut sound, mut damaged) = (0, 0);
    let files: Vec<_> = expected().map(|(name, ..)| (name, file(name))).filter(|(_, file)| file.len() < 3000).collect();
    for round in 0..4000 {
        let (name, mut file) = files[draws.below(files.len())].clone();
        draws.damage(&mut file);
        let Ok(header) = Header::read(&file) else { continue };
        if header.height * header.width > 1 << 16 {
            continue;
        }
        let scale = REDUCED[round % 3];
        let context = || format!("{name}, round {round}, {scale:?}");
        let picture = scaled(&file, header.scaled(scale), scale, &mut scratches[0]);
        let portable = scaled(&file, header.scaled(scale), scale, &mut scratches[1]);
        assert!(picture == portable, "{}", context());
        let whole = pixels(&file, header.scaled(Scale::Whole), &mut scratches[0]);
        assert_eq!(picture.as_ref().err(), whole.err().as_ref(), "{}", context());
        let region = draws.region(header.scaled(scale).height, header.scaled(scale).width);
        match (&picture, scaled(&file, region, scale, &mut scratches[0])) {
            (Ok(picture), Ok(got)) => {
                assert!(got == cut(picture, header.scaled(scale).width, region), "{} {region:?}", context());
            }
            (Err(_), Err(_)) => {}
            (_, got) => panic!("{} {region:?}: {:?}", context(), got.err()),
        }
        if picture.is_ok() { sound += 1 } else { damaged += 1 }
    }
    assert!(sound > 1000 && damaged > 1000, "{sound} {damaged}");
}
