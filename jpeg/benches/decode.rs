//! Decodes whole photographs, reduced ones and crops, and compares with zune-jpeg: `cargo bench -p forebay-jpeg`.
//!
//! The files are the sample photographs, or the `.jpg` files of the folder in `FOREBAY_JPEGS`. `photographs.py` writes
//! 240 photographs of 500 x 375 with about 46 KB each. Crops are drawn as for a random resized crop, scale 0.08 to 1,
//! aspect 3/4 to 4/3.
//!
//! Cost sketch for such a photograph. It has 66,000 codes in 4,600 blocks. A probe of a table waits some eight cycles
//! for the previous one and decodes one and a half codes, so probes take about 120 us at 3 GHz. The transform of a
//! block takes some 60 cycles, another 90 us. Upsampling and colours write 560 KB at 10 GB/s, 55 us.

use std::path::PathBuf;

use divan::Bencher;
use divan::counter::ItemsCount;
use forebay_jpeg::{Header, Region, Scale, Scratch, decode_scaled};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

fn main() {
    divan::main();
}

#[divan::bench]
fn whole(bencher: Bencher) {
    bench(bencher, Scale::Whole, |header, _| header.scaled(Scale::Whole));
}

#[divan::bench]
fn half(bencher: Bencher) {
    bench(bencher, Scale::Half, |header, _| header.scaled(Scale::Half));
}

#[divan::bench]
fn quarter(bencher: Bencher) {
    bench(bencher, Scale::Quarter, |header, _| header.scaled(Scale::Quarter));
}

#[divan::bench]
fn eighth(bencher: Bencher) {
    bench(bencher, Scale::Eighth, |header, _| header.scaled(Scale::Eighth));
}

#[divan::bench]
fn crops(bencher: Bencher) {
    bench(bencher, Scale::Whole, crop);
}

/// Measures what remains when nothing is transformed.
#[divan::bench]
fn entropy_decoding(bencher: Bencher) {
    bench(bencher, Scale::Whole, |_, _| Region { top: 0, left: 0, height: 1, width: 1 });
}

#[divan::bench]
fn whole_by_zune_jpeg(bencher: Bencher) {
    let files = files();
    let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut out = Vec::new();
    bencher.counter(ItemsCount::new(files.len())).bench_local(|| {
        for file in &files {
            let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file.as_slice()), options);
            decoder.decode_headers().expect("the photograph is sound");
            out.resize(decoder.output_buffer_size().expect("the header was read"), 0);
            decoder.decode_into(&mut out).expect("the photograph is sound");
        }
    });
}

fn bench(bencher: Bencher, scale: Scale, region: impl Fn(&Header, &mut u64) -> Region) {
    let files = files();
    let mut state = 1;
    let regions: Vec<_> =
        files.iter().map(|file| region(&Header::read(file).expect("the photograph is sound"), &mut state)).collect();
    let mut scratch = Scratch::default();
    let mut out = Vec::new();
    bencher.counter(ItemsCount::new(files.len())).bench_local(|| {
        for (file, region) in files.iter().zip(&regions) {
            out.resize(region.height * region.width * 3, 0);
            decode_scaled(file, *region, scale, &mut out, &mut scratch).expect("the photograph is sound");
        }
    });
}

fn crop(header: &Header, state: &mut u64) -> Region {
    let mut draw = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as f64 / (1_u64 << 31) as f64
    };
    loop {
        let area = (0.08 + 0.92 * draw()) * (header.height * header.width) as f64;
        let aspect = (0.75 * (16.0_f64 / 9.0).powf(draw())).sqrt();
        let (height, width) = ((area.sqrt() / aspect).round() as usize, (area.sqrt() * aspect).round() as usize);
        if (1..=header.height).contains(&height) && (1..=header.width).contains(&width) {
            let place = |room: usize, at: f64| (at * (room + 1) as f64) as usize;
            let (top, left) = (place(header.height - height, draw()), place(header.width - width, draw()));
            return Region { top, left, height, width };
        }
    }
}

fn files() -> Vec<Vec<u8>> {
    let samples = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/photos"));
    let mut folders = vec![std::env::var_os("FOREBAY_JPEGS").map_or_else(samples, PathBuf::from)];
    let mut paths = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the folder can be read") {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "jpg") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("the file can be read")).collect()
}
