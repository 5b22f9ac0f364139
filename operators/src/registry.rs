//! The list of all operators. A new operator adds one line here and changes nothing else in this file.

use datafusion::logical_expr::ScalarUDF;

use crate::annotations::{filter, operators as follow};
use crate::decode_image::properties;
use crate::descriptor::Descriptor;
use crate::digests;
use crate::fits::FITS;
use crate::json;
use crate::operator::{Operator, OperatorUdf};
use crate::pixels::{augment, encode, in_place, policy};
use crate::random::numbers;
use crate::row_operator::RowOperator;
use crate::rows::TABLE_OPERATORS;
use crate::table::{floats, integers};
use crate::tensors::{arithmetic, join};
use crate::text::measures;

/// Every operator, by category and then by name.
pub static OPERATORS: &[&dyn Operator] = &[
    &crate::decode_image::DecodeImage,
    &crate::decode_image::mask::DecodeMask,
    &in_place::AUTO_CONTRAST,
    &crate::center_crop::CenterCrop,
    &crate::check_size::CheckSize,
    &augment::COLOR_JITTER,
    &encode::ENCODE_JPEG,
    &encode::ENCODE_PNG,
    &in_place::EQUALIZE,
    &augment::GAUSSIAN_BLUR,
    &properties::IMAGE_FORMAT,
    &properties::IMAGE_HEIGHT,
    &properties::IMAGE_WIDTH,
    &crate::keep_position::KeepPosition,
    &crate::normalize::Normalize,
    &crate::pixels::pad::Pad,
    &in_place::POSTERIZE,
    &policy::RAND_AUGMENT,
    &crate::pixels::random_crop::RandomCrop,
    &augment::RANDOM_ERASING,
    &in_place::RANDOM_GRAYSCALE,
    &crate::random_hflip::RandomHflip,
    &crate::random_resized_crop::RandomResizedCrop,
    &augment::RANDOM_ROTATE,
    &in_place::RANDOM_VFLIP,
    &crate::resize::Resize,
    &in_place::SOLARIZE,
    &crate::pixels::to_chw::ToChw,
    &policy::TRIVIAL_AUGMENT,
    &floats::BOXCOX,
    &integers::BUCKETIZE,
    &crate::annotations::convert::ConvertBoxes,
    &filter::FilterByBoxes,
    &follow::CENTER_CROP_BOXES,
    &follow::CENTER_CROP_POINTS,
    &follow::PAD_BOXES,
    &follow::PAD_POINTS,
    &follow::RANDOM_CROP_BOXES,
    &follow::RANDOM_CROP_POINTS,
    &follow::RANDOM_HFLIP_BOXES,
    &follow::RANDOM_HFLIP_POINTS,
    &follow::RANDOM_RESIZED_CROP_BOXES,
    &follow::RANDOM_RESIZED_CROP_POINTS,
    &follow::RANDOM_ROTATE_BOXES,
    &follow::RANDOM_ROTATE_POINTS,
    &follow::RANDOM_VFLIP_BOXES,
    &follow::RANDOM_VFLIP_POINTS,
    &follow::RESIZE_BOXES,
    &follow::RESIZE_POINTS,
    &crate::clamp::Clamp,
    &crate::table::cyclic::Cyclic,
    &crate::table::fill_null::FillNull,
    &crate::log1p::Log1p,
    &floats::LOG_SHIFT,
    &floats::LOGIT,
    &floats::MIN_MAX,
    &integers::QUANTIZE,
    &floats::STANDARDIZE,
    &crate::table::cross::Cross,
    &crate::hash_bucket::HashBucket,
    &crate::hash_split::HashSplit,
    &crate::table::hex_to_int::HexToInt,
    &crate::table::index_of::IndexOf,
    &integers::MAP_ID,
    &crate::table::multi_hot::MultiHot,
    &crate::table::one_hot::OneHot,
    &integers::POSITIVE_MOD,
    &integers::SIGRID_HASH,
    &crate::table::vocab_apply::VocabApply,
    &crate::chunk::ChunkList,
    &crate::table::first_x::FirstX,
    &crate::table::ngram::Ngram,
    &crate::pad_to::PadTo,
    &crate::cast_tensor::CastTensor,
    &crate::tensors::reshape::Reshape,
    &join::STACK,
    &arithmetic::TENSOR_ADD,
    &join::TENSOR_CONCAT,
    &arithmetic::TENSOR_DIV,
    &arithmetic::TENSOR_MUL,
    &arithmetic::TENSOR_SUB,
    &crate::random::choice::RandomChoice,
    &numbers::RANDOM_INT,
    &numbers::RANDOM_NORMAL,
    &crate::random::pick::RandomPick,
    &numbers::RANDOM_UNIFORM,
    &crate::text::chat::ChatSegments,
    &crate::text::chat::ChatTemplate,
    &crate::text::chunk_text::ChunkText,
    &crate::text::corrupt_spans::CorruptSpans,
    &crate::text::detokenize::Detokenize,
    &json::ARRAY_LENGTH,
    &json::EXTRACT,
    &json::EXTRACT_STRING,
    &json::KEYS,
    &json::TYPE,
    &json::VALID,
    &crate::text::mask_tokens::MaskTokens,
    &digests::MD5,
    &crate::text::minhash_signature::MinhashSignature,
    &crate::text::normalize_text::NormalizeText,
    &digests::SHA224,
    &digests::SHA256,
    &digests::SHA384,
    &digests::SHA512,
    &crate::text::tokenize::Tokenize,
    &crate::text::tokenize_segments::TokenizeSegments,
    &measures::ALPHA_RATIO,
    &measures::ALPHA_WORD_RATIO,
    &measures::BULLET_LINE_RATIO,
    &measures::DIGIT_RATIO,
    &measures::DUPLICATE_LINE_CHAR_RATIO,
    &measures::DUPLICATE_LINE_RATIO,
    &measures::DUPLICATE_NGRAM_CHAR_RATIO,
    &measures::ELLIPSIS_LINE_RATIO,
    &measures::MEAN_WORD_LENGTH,
    &measures::TOP_NGRAM_CHAR_RATIO,
    &measures::UPPERCASE_RATIO,
    &measures::WHITESPACE_RATIO,
    &measures::WORD_COUNT,
    &crate::sleep::Sleep,
];

/// Returns the table operator with this name. Names are case-insensitive, like in SQL.
pub fn find_table_operator(name: &str) -> Option<&'static dyn RowOperator> {
    TABLE_OPERATORS.iter().copied().find(|operator| operator.descriptor().name.eq_ignore_ascii_case(name))
}

/// Returns the descriptors of all operators, then of fits that have a name of their own, then of table operators.
pub fn descriptors() -> impl Iterator<Item = &'static Descriptor> {
    let fitted = FITS.iter().map(|fit| fit.descriptor).filter(|descriptor| find(descriptor.name).is_none());
    let of_tables = TABLE_OPERATORS.iter().map(|operator| operator.descriptor());
    OPERATORS.iter().map(|operator| operator.descriptor()).chain(fitted).chain(of_tables)
}

/// Returns the descriptor of the operator or table operator with this name. Names are case-insensitive.
pub fn descriptor(name: &str) -> Option<&'static Descriptor> {
    descriptors().find(|descriptor| descriptor.name.eq_ignore_ascii_case(name))
}

/// Returns the operator with this name. Names are case-insensitive, like in SQL.
pub fn find(name: &str) -> Option<&'static dyn Operator> {
    OPERATORS.iter().copied().find(|operator| operator.descriptor().name.eq_ignore_ascii_case(name))
}

/// Returns the operator with this name as a DataFusion function.
pub fn scalar_udf(name: &str) -> Option<ScalarUDF> {
    find(name).map(|operator| ScalarUDF::from(OperatorUdf::new(operator)))
}

/// Returns all operators as DataFusion functions, ready for `SessionContext::register_udf`.
pub fn scalar_udfs() -> Vec<ScalarUDF> {
    OPERATORS.iter().map(|operator| ScalarUDF::from(OperatorUdf::new(*operator))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_without_case() {
        assert_eq!(find("Resize").map(|o| o.descriptor().name), Some("resize"));
        assert!(find("rotate").is_none());
    }
}
