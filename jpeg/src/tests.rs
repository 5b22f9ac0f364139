//! Tests of whole files: comparison with Pillow's pixels, regions, implementations, and damaged files.

mod resized;
mod scaled;

use crate::cpu::Cpu;
use crate::{Error, Header, Region, Scratch, decode};

fn file(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/testdata/{name}.jpg", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Returns the name, height, width and hash of each file.
fn expected() -> impl Iterator<Item = (&'static str, usize, usize, u64)> {
    include_str!("../testdata/expected.txt").lines().map(|line| {
        let mut words = line.split(' ');
        let name = words.next().unwrap();
        let mut side = || words.next().unwrap().parse().unwrap();
        (name, side(), side(), u64::from_str_radix(words.next().unwrap(), 16).unwrap())
    })
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

fn portable() -> Scratch {
    Scratch { cpu: Cpu::Portable, ..Scratch::default() }
}

fn pixels(file: &[u8], region: Region, scratch: &mut Scratch) -> Result<Vec<u8>, Error> {
    let mut out = vec![0; region.height * region.width * 3];
    decode(file, region, &mut out, scratch).map(|()| out)
}

fn whole(header: &Header) -> Region {
    Region { top: 0, left: 0, height: header.height, width: header.width }
}

fn cut(picture: &[u8], width: usize, region: Region) -> Vec<u8> {
    let rows = picture.chunks_exact(width * 3).skip(region.top).take(region.height);
    rows.flat_map(|row| &row[region.left * 3..][..region.width * 3]).copied().collect()
}

/// Pseudo-random numbers for tests, from a linear congruential generator.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    /// Draws a region of an image of this height and width.
    fn region(&mut self, high: usize, wide: usize) -> Region {
        let (height, width) = (1 + self.below(high), 1 + self.below(wide));
        let (top, left) = (self.below(high - height + 1), self.below(wide - width + 1));
        Region { top, left, height, width }
    }

    /// Truncates a file, changes some of its bytes, both or neither.
    fn damage(&mut self, file: &mut Vec<u8>) {
        if self.below(6) == 0 {
            file.truncate(self.below(file.len()));
        }
        for _ in 0..self.below(5) {
            // Change the header as often as the data after it.
            let range = if self.below(2) == 0 { file.len().min(620) } else { file.len() };
            if range > 2 {
                file[2 + self.below(range - 2)] = self.below(256) as u8;
            }
        }
    }
}

#[test]
fn pixels_are_those_of_pillow() {
    for mut scratch in [Scratch::default(), portable()] {
        for (name, height, width, hash) in expected() {
            let file = file(name);
            let header = Header::read(&file).unwrap();
            assert_eq!((header.height, header.width), (height, width), "{name}");
            assert_eq!(fnv(&pixels(&file, whole(&header), &mut scratch).unwrap()), hash, "{name}");
        }
    }
}

#[test]
fn a_region_has_the_pixels_of_the_whole() {
    let mut draws = Draws(3);
    let mut scratches = [Scratch::default(), portable()];
    for (name, ..) in expected() {
        let file = file(name);
        let header = Header::read(&file).unwrap();
        let picture = pixels(&file, whole(&header), &mut scratches[0]).unwrap();
        for at in 0..40 {
            let region = draws.region(header.height, header.width);
            let got = pixels(&file, region, &mut scratches[at % 2]).unwrap();
            assert!(got == cut(&picture, header.width, region), "{name} {region:?}");
        }
    }
}

#[test]
fn every_truncation_is_an_error() {
    for name in ["tiny", "420_p_60_2x3", "RGB_restart_marker_blocks_optimize", "CMYK_quality"] {
        let file = file(name);
        let header = Header::read(&file).unwrap();
        let mut scratch = Scratch::default();
        for len in 0..file.len() {
            assert!(pixels(&file[..len], whole(&header), &mut scratch).is_err(), "{len} bytes of {name}");
        }
        let longer = [file.as_slice(), b"\0\0motion photo"].concat();
        assert_eq!(pixels(&longer, whole(&header), &mut scratch), pixels(&file, whole(&header), &mut scratch));
    }
}

/// Damaged files never panic. The outcome is the same for the whole image, for a region, and for all implementations.
#[test]
fn damage_is_told_the_same_way_everywhere() {
    let seed = 17;
    let mut draws = Draws(seed);
    let mut scratches = [Scratch::default(), portable()];
    let (mut sound, mut damaged) = (0, 0);
    let files: Vec<_> = expected().map(|(name, ..)| (name, file(name))).filter(|(_, file)| file.len() < 3000).collect();
    for round in 0..6000 {
        let (name, mut file) = files[draws.below(files.len())].clone();
        draws.damage(&mut file);
        let Ok(header) = Header::read(&file) else { continue };
        if header.height * header.width > 1 << 16 {
            continue;
        }
        let picture = pixels(&file, whole(&header), &mut scratches[0]);
        let context = || format!("{name}, round {round} of seed {seed}");
        assert!(picture == pixels(&file, whole(&header), &mut scratches[1]), "{}", context());
        for scratch in &mut scratches {
            let region = draws.region(header.height, header.width);
            let got = pixels(&file, region, scratch);
            match (&picture, got) {
                (Ok(picture), Ok(got)) => {
                    assert!(got == cut(picture, header.width, region), "{} {region:?}", context());
                }
                (Err(_), Err(_)) => {}
                (whole, part) => panic!("{} {region:?}: {:?} {:?}", context(), whole.as_ref().err(), part.err()),
            }
        }
        if picture.is_ok() { sound += 1 } else { damaged += 1 }
    }
    assert!(sound > 1000 && damaged > 1000, "{sound} {damaged}");
}

#[test]
fn a_small_file_that_claims_a_large_picture_costs_little() {
    for name in ["420_s_97_33x90", "420_p_60_2x3"] {
        let mut file = file(name);
        let frame = file.windows(2).position(|pair| matches!(pair, [0xFF, 0xC0 | 0xC2])).unwrap();
        file[frame + 5..frame + 9].fill(0xFF);
        let header = Header::read(&file).unwrap();
        assert_eq!((header.height, header.width), (65535, 65535));
        let corner = Region { top: 65534, left: 65534, height: 1, width: 1 };
        assert_eq!(pixels(&file, corner, &mut Scratch::default()), Err(Error::Damaged("the file is cut short")));
    }
}

#[test]
fn scans_are_bounded() {
    let file = file("flat");
    let scan = file.windows(2).rposition(|pair| pair == [0xFF, 0xDA]).unwrap();
    let header = Header::read(&file).unwrap();
    let with = |scans| {
        let end = file.len() - 2;
        let more = file[scan..end].repeat(scans);
        pixels(&[&file[..end], &more, &file[end..]].concat(), whole(&header), &mut Scratch::default())
    };
    assert_eq!(with(10), with(0));
    assert_eq!(with(100), Err(Error::Damaged("over 100 scans")));
}

/// A grey progressive image of `side` blocks each way, whose scans after the first refine all its blocks in runs, with
/// about a bit for a thousand blocks.
fn scan_bomb(side: usize, refinements: usize) -> Vec<u8> {
    let pixels = (8 * side as u16).to_be_bytes();
    let table = |kind: u8, symbol: u8| {
        let lengths = [[1].as_slice(), &[0; 15]].concat();
        [&[0xFF, 0xC4, 0, 20, kind], lengths.as_slice(), &[symbol]].concat()
    };
    let scan = |band: [u8; 3], data: usize| [&[0xFF, 0xDA, 0, 8, 1, 1, 0], band.as_slice(), &vec![0; data]].concat();
    let blocks = side * side;
    [
        vec![0xFF, 0xD8],
        [&[0xFF, 0xDB, 0, 67, 0], [1; 64].as_slice()].concat(),
        [&[0xFF, 0xC2, 0, 11, 8], pixels.as_slice(), &pixels, &[1, 1, 0x11, 0]].concat(),
        // The code 0 is the difference 0, and a run of 2^14 blocks.
        table(0, 0),
        table(0x10, 0xE0),
        scan([0, 0, 0], blocks.div_ceil(8)),
        scan([1, 63, 0x10], 2 * blocks.div_ceil(1 << 14)).repeat(refinements),
        vec![0xFF, 0xD9],
    ]
    .concat()
}

#[test]
fn the_time_for_a_pixel_is_bounded() {
    let decoded = |side, refinements| {
        let file = scan_bomb(side, refinements);
        let header = Header::read(&file).unwrap();
        pixels(&file, whole(&header), &mut Scratch::default()).map(|pixels| pixels.iter().all(|value| *value == 128))
    };
    for side in [1, 64] {
        assert_eq!(decoded(side, 99), Ok(true));
        assert_eq!(decoded(side, 100), Err(Error::Damaged("over 100 scans")));
    }
}

#[test]
fn the_number_of_scans_is_bounded() {
    let file = file("420_p_60_2x3");
    let header = Header::read(&file).unwrap();
    let scans: Vec<usize> = (0..file.len()).filter(|at| file[*at..].starts_with(&[0xFF, 0xDA])).collect();
    // The first bits of a band of the second component, which has a sixth of the blocks. A scan may repeat them.
    let is_it = |at: &usize| matches!(file[at + 4..], [1, 2, _, 1..=63, _, 0..16, ..]);
    let first = scans.iter().position(is_it).unwrap();
    let (start, end) = (scans[first], scans[first + 1]);
    // The scan's own bytes, without the tables of the next one.
    let end = start + 2 + file[start + 2..end].windows(2).position(|two| two[0] == 0xFF && two[1] > 0).unwrap();
    let with = |more: usize| {
        let file = [&file[..end], &file[start..end].repeat(more), &file[end..]].concat();
        pixels(&file, whole(&header), &mut Scratch::default())
    };
    assert_eq!(with(100 - scans.len()), with(0));
    assert_eq!(with(101 - scans.len()), Err(Error::Damaged("over 100 scans")));
}

#[test]
fn a_region_must_fit() {
    let file = file("tiny");
    let header = Header::read(&file).unwrap();
    let fits = whole(&header);
    let mut scratch = Scratch::default();
    for region in [
        Region { top: 1, ..fits },
        Region { left: 1, ..fits },
        Region { height: 0, ..fits },
        Region { width: 0, ..fits },
        Region { top: usize::MAX, ..fits },
    ] {
        assert_eq!(decode(&file, region, &mut [], &mut scratch), Err(Error::Region));
    }
    assert_eq!(decode(&file, fits, &mut [0; 9], &mut scratch), Err(Error::Region));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn both_transforms_agree_on_any_coefficients() {
    let Cpu::Avx2(cpu) = Cpu::default() else { return };
    let mut draws = Draws(5);
    // Miri takes a hundred times as long.
    for round in 0..if cfg!(miri) { 200 } else { 20_000 } {
        let mut blocks = [0_i16; 128];
        let last = [0, 9, 63][round % 3];
        for block in blocks.chunks_exact_mut(64) {
            for _ in 0..=draws.below(1 + usize::from(last)) {
                let place = usize::from(crate::standard::ZIGZAG[draws.below(1 + usize::from(last))]);
                let range = [100, 3000, 65536][draws.below(3)];
                block[place] = (draws.below(range) as i32 - range as i32 / 2) as i16;
            }
        }
        let starts = [(3, 16), (11, 16)];
        for side in [8, 4, 2] {
            let (mut one, mut other) = ([0; 160], [0; 160]);
            let mut left = [blocks; 2];
            Cpu::Portable.pair(side, &mut left[0], [last; 2], &mut one, starts);
            Cpu::Avx2(cpu).pair(side, &mut left[1], [last; 2], &mut other, starts);
            assert!(one == other, "to {side}: {blocks:?}");
            assert_eq!(left, [[0; 128]; 2]);
        }
    }
}
