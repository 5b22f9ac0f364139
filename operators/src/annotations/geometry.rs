//! The map from positions in an image to positions in the result.

use crate::image_chain::Span;
use crate::image_column::{Rectangle, Size};

/// An affine map of an image onto a result of some size.
///
/// Edges are at whole numbers: the first pixel reaches from 0 to 1. Points name pixels, so the first pixel is 0. Only
/// mirroring tells the two apart, as in torchvision.
#[derive(Debug, Clone, Copy)]
pub(super) struct Movement {
    /// The coefficients of x, y and 1 for the new x.
    x: [f64; 3],
    /// The coefficients of x, y and 1 for the new y.
    y: [f64; 3],
    /// The size of the result.
    pub(super) size: Size,
}

/// What a position names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Positions {
    Edges,
    Pixels,
}

impl Movement {
    fn along_axes(x: [f64; 2], y: [f64; 2], size: Size) -> Self {
        Self { x: [x[0], 0.0, x[1]], y: [0.0, y[0], y[1]], size }
    }

    pub(super) fn none(size: Size) -> Self {
        Self::along_axes([1.0, 0.0], [1.0, 0.0], size)
    }

    /// Scales a part of the image to a size.
    pub(super) fn scaled(part: Rectangle, size: Size) -> Self {
        let side = |first: usize, from: usize, to: usize| {
            let scale = to as f64 / from as f64;
            [scale, -(first as f64) * scale]
        };
        Self::along_axes(side(part.left, part.width, size.width), side(part.top, part.height, size.height), size)
    }

    /// Scales an area, in fractions of pixels, to a size: left, top, width and height.
    pub(super) fn of_area([left, top, width, height]: [f64; 4], size: Size) -> Self {
        let side = |first: f64, len: f64, to: usize| [to as f64 / len, -first * to as f64 / len];
        Self::along_axes(side(left, width, size.width), side(top, height, size.height), size)
    }

    /// Copies rows and columns.
    pub(super) fn copied([rows, columns]: [Span; 2], size: Size) -> Self {
        let side = |span: Span| [1.0, span.target as f64 - span.source as f64];
        Self::along_axes(side(columns), side(rows), size)
    }

    /// Adds a border, of which only the left and top widths move positions.
    pub(super) fn bordered(left: usize, top: usize, size: Size) -> Self {
        Self::along_axes([1.0, left as f64], [1.0, top as f64], size)
    }

    pub(super) fn mirrored_left_to_right(size: Size, positions: Positions) -> Self {
        Self::along_axes([-1.0, positions.last(size.width)], [1.0, 0.0], size)
    }

    pub(super) fn mirrored_top_to_bottom(size: Size, positions: Positions) -> Self {
        Self::along_axes([1.0, 0.0], [-1.0, positions.last(size.height)], size)
    }

    /// Rotates counterclockwise about the image's centre.
    pub(super) fn rotated(degrees: f64, size: Size) -> Self {
        let (sin, cos) = libm::sincos(degrees.to_radians());
        let (x, y) = (size.width as f64 / 2.0, size.height as f64 / 2.0);
        Self { x: [cos, sin, x - cos * x - sin * y], y: [-sin, cos, y + sin * x - cos * y], size }
    }

    fn at(&self, x: f64, y: f64) -> [f64; 2] {
        // A product with zero would spread an infinite coordinate to the other one.
        let along = |[a, b, c]: [f64; 3]| {
            let product = |factor: f64, value: f64| if factor == 0.0 { 0.0 } else { factor * value };
            product(a, x) + product(b, y) + c
        };
        [along(self.x), along(self.y)]
    }

    /// Returns the visible part of a box: left, top, right, bottom. `None` if it has no area, or less than the share
    /// `min_visible` of the area that it has in the image of size `from`.
    pub(super) fn visible(&self, corners: [f32; 4], from: Size, min_visible: f64) -> Option<[f32; 4]> {
        let [left, top, right, bottom] = clipped(corners.map(f64::from), from);
        if !has_area([left, top, right, bottom]) {
            return None;
        }
        let corners = [(left, top), (right, top), (left, bottom), (right, bottom)].map(|(x, y)| self.at(x, y));
        let least = |axis: usize| corners.iter().map(|corner| corner[axis]).fold(f64::INFINITY, f64::min);
        let most = |axis: usize| corners.iter().map(|corner| corner[axis]).fold(f64::NEG_INFINITY, f64::max);
        let hull = [least(0), least(1), most(0), most(1)];
        let visible = clipped(hull, self.size);
        let is_enough = has_area(visible) && area(visible) >= min_visible * area(hull);
        let rounded = visible.map(|side| side as f32);
        (is_enough && has_area(rounded.map(f64::from))).then_some(rounded)
    }

    /// Returns the new place of a point, or `None` if it is outside the image of size `from` or the result.
    pub(super) fn placed(&self, [x, y]: [f32; 2], from: Size) -> Option<[f32; 2]> {
        let (x, y) = (f64::from(x), f64::from(y));
        if !is_inside([x, y], from) {
            return None;
        }
        // Rounding may move a point to the edge, which is outside.
        let rounded = self.at(x, y).map(|side| side as f32);
        is_inside(rounded.map(f64::from), self.size).then_some(rounded)
    }
}

impl Positions {
    /// The position that the first one, 0, takes if a side of this length is mirrored.
    fn last(self, side: usize) -> f64 {
        match self {
            Self::Edges => side as f64,
            Self::Pixels => side as f64 - 1.0,
        }
    }
}

fn clipped([left, top, right, bottom]: [f64; 4], size: Size) -> [f64; 4] {
    let (height, width) = (size.height as f64, size.width as f64);
    [left.clamp(0.0, width), top.clamp(0.0, height), right.clamp(0.0, width), bottom.clamp(0.0, height)]
}

/// Whether a box has an area. A box with a NaN has none.
fn has_area([left, top, right, bottom]: [f64; 4]) -> bool {
    right > left && bottom > top
}

fn area([left, top, right, bottom]: [f64; 4]) -> f64 {
    (right - left) * (bottom - top)
}

fn is_inside([x, y]: [f64; 2], size: Size) -> bool {
    (0.0..size.width as f64).contains(&x) && (0.0..size.height as f64).contains(&y)
}
