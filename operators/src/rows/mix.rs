//! `mixup` and `cutmix`: mix each image, and its label, with those of another row in its window.
//!
//! [`Cycle`] gives each row a partner. Two functions compute the mixed columns from the row's own values and the
//! partner's, row by row. Both functions of a call draw the same numbers, so label and image agree.

mod blend;
mod partners;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, PrimitiveArray};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, FieldRef, Float32Type, Int64Type, UInt8Type, UInt64Type};
use datafusion::common::{Result, exec_err, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use forebay_arrays::{FixedShapeTensor, item};

use self::blend::{Blend, MixMethod};
use self::partners::Cycle;
use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Parameter};
use crate::image_column::{CHANNELS, Rectangle, value_type, wording};
use crate::row_operator::{ColumnValue, ResultColumn, RowArguments, RowOperator, RowPlan, RowScope};
use crate::tensors::{self, whole};

const ROWS: Parameter = Parameter::rows("With an image and a label in each row");
const ALPHA: Parameter =
    Parameter::constant("alpha", ConstantKind::Number, "Both parameters of the Beta distribution").or("1.0");
const NUM_CLASSES: Parameter = Parameter::constant(
    "num_classes",
    ConstantKind::PositiveInteger,
    "The length of a mixed label if labels are integers, up to 65536",
)
.or("NULL");
const P: Parameter = Parameter::constant("p", ConstantKind::Number, "The share of rows that are mixed").or("1.0");
const IMAGE: Parameter =
    Parameter::constant("image", ConstantKind::Text, "The column of the images, if there are several").or("NULL");
const LABEL: Parameter = Parameter::constant("label", ConstantKind::Text, "The column of the labels").or("'label'");

const RETURNS: &str = "the columns of rows, with the image mixed and the label as float32 of num_classes";

static MIXUP_DESCRIPTOR: Descriptor = Descriptor {
    name: "mixup",
    version: 1,
    category: "image",
    summary: "Blends each image and its label with those of another row in its window",
    parameters: &[ROWS, ALPHA, NUM_CLASSES, P, IMAGE, LABEL],
    returns: RETURNS,
    determinism: Determinism::KeyedRandom,
    docs: "The result is lambda * own + (1 - lambda) * partner, for images (uint8, rounded half up, or float32) and \
           for labels. Each row draws its lambda from Beta(alpha, alpha), rounded to a multiple of 2^-16. Partners are \
           the window's rows in a random cycle: each row is a partner once, and a single row is its own partner. An \
           integer label, or a boolean label as 0 and 1, becomes one-hot before it is mixed. A list of fixed size is \
           mixed unchanged. Functions in the subquery's SELECT run for the row, and again for its partner with the \
           partner's randomness. Other columns are the row's own. Null if either value is null.",
    source: "Zhang et al., mixup: Beyond Empirical Risk Minimization (2017); torchvision's `MixUp`, with a lambda for each row",
    examples: &[Example {
        sql: "SELECT label FROM mixup((SELECT resize(decode_image(bytes), 1, 1) AS image, ascii(path) - 97 AS label \
              FROM pictures), num_classes => 3)",
        result: "[3] 0.3743744 0.0 0.6256256; [3] 0.12605286 0.87394714 0.0; [3] 0.0 0.29756165 0.70243835",
    }],
    ..Descriptor::BASE
};

static CUTMIX_DESCRIPTOR: Descriptor = Descriptor {
    name: "cutmix",
    version: 1,
    category: "image",
    summary: "Pastes a box of another row's image into each image, and mixes their labels by the box's area",
    parameters: &[ROWS, ALPHA, NUM_CLASSES, P, IMAGE, LABEL],
    returns: RETURNS,
    determinism: Determinism::KeyedRandom,
    docs: "Each row draws lambda from Beta(alpha, alpha), rounded to a multiple of 2^-16, and the centre of a box \
           whose sides are sqrt(1 - lambda) of the image's sides. The box is cut at the image's borders. Labels are \
           mixed by the share of the image that stays. Partners, labels, the subquery's SELECT and nulls are as in \
           `mixup`. Images are uint8 or float32, height x width x 3, or 3 x height x width as returned by `to_chw`.",
    source: "Yun et al., CutMix (2019); torchvision's `CutMix`, with a lambda and a box for each row",
    examples: &[Example {
        sql: "SELECT label FROM cutmix((SELECT resize(decode_image(bytes), 4, 4) AS image, ascii(path) - 97 AS label \
              FROM pictures), num_classes => 3)",
        result: "[3] 0.875 0.0 0.125; [3] 0.25 0.75 0.0; [3] 0.0 0.25 0.75",
    }],
    ..Descriptor::BASE
};

/// Maximum length of a label.
const CLASSES_MAX: usize = 1 << 16;

/// A table operator that mixes images.
#[derive(Debug)]
pub(crate) struct MixOperator {
    descriptor: &'static Descriptor,
    pastes: bool,
}

/// The operator `mixup`.
pub(crate) static MIXUP: MixOperator = MixOperator { descriptor: &MIXUP_DESCRIPTOR, pastes: false };
/// The operator `cutmix`.
pub(crate) static CUTMIX: MixOperator = MixOperator { descriptor: &CUTMIX_DESCRIPTOR, pastes: true };

impl RowOperator for MixOperator {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    fn scope(&self) -> RowScope {
        RowScope::Window
    }

    fn plan(&self, arguments: &RowArguments<'_>) -> Result<RowPlan> {
        // If a named column is wrong, the error states its type.
        let named = arguments.text("image")?;
        let fits = |field: &Field| named.map_or_else(|| Mix::is_image(field), |name| field.name() == name);
        let image = arguments.column("image", "a tensor of uint8 or float32 images of one shape", fits)?;
        let label = arguments.column("label", "a label", |_| true)?;
        let (image_field, label_field) = (arguments.field(image), arguments.field(label));
        let mix = Mix::try_new(self, arguments, image_field, label_field)?;
        let mut plan = RowPlan {
            columns: vec![("image", image), ("label", label)],
            ..RowPlan::keeping(arguments.input(), Arc::new(Cycle))
        };
        let mixed = |part: MixedColumn, column: usize| {
            let values = vec![
                ColumnValue::Parent(column),
                ColumnValue::Partner(column),
                ColumnValue::RandomKey,
                ColumnValue::Site,
            ];
            ColumnValue::Call(Arc::new(mix.function(part)), values)
        };
        // One column may be both. The image comes first.
        let label_result = Arc::new(mix.label(label_field.name(), label_field.is_nullable())?);
        plan.results[label] = ResultColumn::new(label_result, mixed(MixedColumn::Label, label));
        plan.results[image].value = mixed(MixedColumn::Image, image);
        Ok(plan)
    }
}

/// A call of `mixup` or `cutmix`, without its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Mix {
    operator: &'static str,
    way: MixMethod,
    /// The bits of alpha, so that calls can be compared.
    alpha: u64,
    p: u64,
    classes: usize,
}

impl Mix {
    /// Makes the call over columns of these fields.
    fn try_new(operator: &MixOperator, arguments: &RowArguments<'_>, image: &Field, label: &Field) -> Result<Self> {
        let (alpha, p) = (arguments.number("alpha")?, arguments.number("p")?);
        if !(alpha > 0.0 && alpha.is_finite()) {
            return arguments.refuse("alpha", format_args!("must be above 0, got {alpha}"));
        }
        if !(0.0..=1.0).contains(&p) {
            return arguments.refuse("p", format_args!("must be between 0 and 1, got {p}"));
        }
        let num_classes = arguments.integer("num_classes")?.and_then(|classes| usize::try_from(classes).ok());
        let wrong = |what: &str| {
            let problem = format!("must be {what}, and \"{}\" is {}", image.name(), wording(image));
            arguments.refuse("image", problem)
        };
        let Some(tensor) = Self::image_of(image) else {
            return wrong("a tensor of uint8 or float32, all of one shape; `resize` makes one");
        };
        let way = if !operator.pastes {
            MixMethod::Mixup
        } else {
            match tensor.shape[..] {
                [_, height, width] if tensor.has_names(&["C", "H", "W"]) => {
                    MixMethod::Cutmix { height, width, interleaved: 1 }
                }
                [height, width, CHANNELS] => MixMethod::Cutmix { height, width, interleaved: CHANNELS },
                _ => {
                    return wrong(
                        "height x width x 3, or 3 x height x width with dimensions named as `to_chw` names them",
                    );
                }
            }
        };
        let is_class = |data_type: &DataType| data_type.is_integer() || *data_type == DataType::Boolean;
        let classes = match (label.data_type(), num_classes) {
            (data_type, Some(classes)) if is_class(data_type) && classes <= CLASSES_MAX => classes,
            (data_type, Some(classes)) if is_class(data_type) => {
                return arguments.refuse("num_classes", format_args!("must be at most {CLASSES_MAX}, got {classes}"));
            }
            (data_type, None) if is_class(data_type) => {
                let name = label.name();
                return arguments.refuse(
                    "num_classes",
                    format_args!("is missing: labels are mixed as one-hot, and \"{name}\" is {data_type}"),
                );
            }
            (data_type, given) => match (FixedShapeTensor::of_numbers(label).map(|label| label.shape), given) {
                (Some(shape), None) if shape.len() == 1 => shape[0],
                (Some(shape), Some(classes)) if shape == [classes] => classes,
                (Some(shape), Some(classes)) if shape.len() == 1 => {
                    let (name, has) = (label.name(), shape[0]);
                    return arguments.refuse("num_classes", format_args!("is {classes}, and \"{name}\" has {has}"));
                }
                _ => {
                    let name = label.name();
                    return arguments.refuse(
                        "label",
                        format_args!(
                            "must be an integer, a boolean or a list of fixed size, and \"{name}\" is {data_type}"
                        ),
                    );
                }
            },
        };
        Ok(Self { operator: operator.descriptor.name, way, alpha: alpha.to_bits(), p: p.to_bits(), classes })
    }

    /// Returns whether both operators accept a column of images.
    fn is_image(field: &Field) -> bool {
        Self::image_of(field).is_some_and(|tensor| tensor.shape.len() == 3)
    }

    fn image_of(field: &Field) -> Option<FixedShapeTensor> {
        let is_tensor = value_type(field).is_some();
        FixedShapeTensor::of_numbers(field).filter(|tensor| {
            is_tensor && tensor.dtype.is_none() && matches!(tensor.value, DataType::UInt8 | DataType::Float32)
        })
    }

    /// Returns the field of a mixed label.
    fn label(&self, name: &str, nullable: bool) -> Result<Field> {
        tensors::field(&FixedShapeTensor::new(DataType::Float32, vec![self.classes]), name, nullable)
    }

    /// Returns a mixed column as a function of the row's own value, the partner's value, the row's random key and the
    /// call's site.
    fn function(&self, part: MixedColumn) -> ScalarUDF {
        let name = match part {
            MixedColumn::Image => format!("{}_image", self.operator),
            MixedColumn::Label => format!("{}_label", self.operator),
        };
        ScalarUDF::from(MixPart { name, mix: *self, part, signature: Signature::any(4, Volatility::Immutable) })
    }
}

/// The mixed column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum MixedColumn {
    /// The image.
    Image,
    /// The label.
    Label,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct MixPart {
    name: String,
    mix: Mix,
    part: MixedColumn,
    signature: Signature,
}

impl ScalarUDFImpl for MixPart {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("{} is asked for its field", self.name)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let [own, partner, ..] = args.arg_fields else { return internal_err!("{} lacks arguments", self.name) };
        let nullable = own.is_nullable() || partner.is_nullable();
        match self.part {
            MixedColumn::Image => Ok(Arc::new(own.as_ref().clone().with_nullable(nullable))),
            MixedColumn::Label => Ok(Arc::new(self.mix.label(own.name(), nullable)?)),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let [own, partner, keys, sites] = &arrays[..] else { return internal_err!("{} lacks arguments", self.name) };
        let (keys, sites) = (keys.as_primitive::<UInt64Type>(), sites.as_primitive::<UInt64Type>());
        let blends = keys.values().iter().zip(sites.values()).map(|(key, site)| self.mix.blend(*key, *site));
        let mixed = match self.part {
            MixedColumn::Image => self.mix.images(own, partner, blends),
            MixedColumn::Label => self.mix.labels(own, partner, blends),
        };
        mixed.map(ColumnarValue::Array)
    }
}

impl Mix {
    fn images(&self, own: &ArrayRef, partner: &ArrayRef, blends: impl Iterator<Item = Blend>) -> Result<ArrayRef> {
        let name = self.operator;
        let (own, partner) = (whole(name, own)?, whole(name, partner)?);
        match own.value_type() {
            DataType::UInt8 => self.mixed::<UInt8Type>(own, partner, blends, |own, partner, weight| {
                let (a, b) = (weight, Blend::WHOLE - weight);
                for (own, partner) in own.iter_mut().zip(partner) {
                    *own = ((u32::from(*own) * a + u32::from(*partner) * b + Blend::WHOLE / 2) >> 16) as u8;
                }
            }),
            DataType::Float32 => self.mixed::<Float32Type>(own, partner, blends, |own, partner, weight| {
                let a = Blend::share(weight) as f32;
                let b = 1.0 - a;
                for (own, partner) in own.iter_mut().zip(partner) {
                    *own = *own * a + *partner * b;
                }
            }),
            other => internal_err!("{name} got images of {other}, which are refused"),
        }
    }

    fn mixed<T: ArrowPrimitiveType>(
        &self,
        own: &FixedSizeListArray,
        partner: &FixedSizeListArray,
        blends: impl Iterator<Item = Blend>,
        blended: impl Fn(&mut [T::Native], &[T::Native], u32),
    ) -> Result<ArrayRef> {
        let size = own.value_length() as usize;
        let values = |list: &FixedSizeListArray| list.values().as_primitive::<T>().values().clone();
        let (mut out, partners) = (values(own).to_vec(), values(partner));
        for ((own, partner), blend) in out.chunks_exact_mut(size).zip(partners.chunks_exact(size)).zip(blends) {
            match self.way {
                MixMethod::Mixup => blended(own, partner, blend.own),
                MixMethod::Cutmix { height, width, interleaved } => {
                    let Rectangle { top, left, height: rows, width: columns } = blend.pasted;
                    // An image with planes has the rows of all planes.
                    for first in (0..size).step_by(height * width * interleaved) {
                        for y in top..top + rows {
                            let start = first + (y * width + left) * interleaved;
                            let run = start..start + columns * interleaved;
                            own[run.clone()].copy_from_slice(&partner[run]);
                        }
                    }
                }
            }
        }
        let DataType::FixedSizeList(item, length) = own.data_type() else {
            return internal_err!("a column of tensors is {}", own.data_type());
        };
        let nulls = NullBuffer::union(own.nulls(), partner.nulls());
        let out = Arc::new(PrimitiveArray::<T>::from_iter_values(out));
        Ok(Arc::new(FixedSizeListArray::try_new(Arc::clone(item), *length, out, nulls)?))
    }

    fn labels(&self, own: &ArrayRef, partner: &ArrayRef, blends: impl Iterator<Item = Blend>) -> Result<ArrayRef> {
        let (mut out, partners) = (self.one_hot(own)?, self.one_hot(partner)?);
        for ((own, partner), blend) in
            out.chunks_exact_mut(self.classes).zip(partners.chunks_exact(self.classes)).zip(blends)
        {
            let a = blend.of_label(self.way);
            let b = 1.0 - a;
            for (own, partner) in own.iter_mut().zip(partner) {
                *own = *own * a + *partner * b;
            }
        }
        let nulls = NullBuffer::union(own.nulls(), partner.nulls());
        let values = Arc::new(Float32Array::from(out));
        Ok(Arc::new(FixedSizeListArray::try_new(item(DataType::Float32), self.classes as i32, values, nulls)?))
    }

    /// Converts labels to floats. Integers and booleans become one-hot.
    fn one_hot(&self, labels: &ArrayRef) -> Result<Vec<f32>> {
        let name = self.operator;
        if let DataType::FixedSizeList(..) = labels.data_type() {
            let floats = cast(whole(name, labels)?.values(), &DataType::Float32)?;
            return Ok(floats.as_primitive::<Float32Type>().values().to_vec());
        }
        let given = labels.null_count();
        let labels = cast(labels, &DataType::Int64)?;
        if labels.null_count() > given {
            return exec_err!("{name}: a label from 2^63 on is none of {} classes", self.classes);
        }
        let mut out = vec![0.0; labels.len() * self.classes];
        for (label, out) in labels.as_primitive::<Int64Type>().iter().zip(out.chunks_exact_mut(self.classes)) {
            let Some(label) = label else { continue };
            match usize::try_from(label).ok().and_then(|label| out.get_mut(label)) {
                Some(place) => *place = 1.0,
                None => return exec_err!("{name}: the label {label} is none of {} classes", self.classes),
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, UInt8Array};
    use arrow::datatypes::Fields;
    use datafusion::scalar::ScalarValue;

    use super::*;

    fn images(value: DataType, shape: Vec<usize>, names: &[&str]) -> Field {
        FixedShapeTensor::new(value, shape).named(names).field("image", true).unwrap()
    }

    fn planned(
        operator: &MixOperator,
        (alpha, p): (f64, f64),
        classes: Option<i64>,
        image: &Field,
        label: &Field,
    ) -> Result<Mix> {
        let constants = operator.descriptor.parameters[1..].iter().map(|parameter| match parameter.name {
            "alpha" => ScalarValue::from(alpha),
            "p" => ScalarValue::from(p),
            "num_classes" => ScalarValue::from(classes),
            _ => ScalarValue::Null,
        });
        let (constants, fields) = (constants.collect::<Vec<_>>(), Fields::from(vec![image.clone(), label.clone()]));
        Mix::try_new(operator, &RowArguments::new(operator.descriptor, &constants, &fields), image, label)
    }

    fn call(operator: &MixOperator, alpha: f64, image: &Field) -> Mix {
        planned(operator, (alpha, 1.0), Some(3), image, &Field::new("label", DataType::Int64, true)).unwrap()
    }

    fn list(values: ArrayRef, size: usize) -> ArrayRef {
        let item = item(values.data_type().clone());
        Arc::new(FixedSizeListArray::new(item, size as i32, values, None))
    }

    #[test]
    fn beta_has_its_mean_and_variance() {
        let image = images(DataType::UInt8, vec![2, 2, 3], &["H", "W", "C"]);
        for alpha in [0.05, 0.2, 0.7, 1.0, 4.0] {
            let call = call(&MIXUP, alpha, &image);
            let shares: Vec<f64> = (0..20_000).map(|key| Blend::share(call.blend(key, 3).own)).collect();
            let mean = shares.iter().sum::<f64>() / 20_000.0;
            let variance = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / 20_000.0;
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!((mean - 0.5).abs() < 0.015, "alpha {alpha}: mean {mean}");
            assert!(
                (variance / expected - 1.0).abs() < 0.04,
                "alpha {alpha}: variance {variance}, expected {expected}"
            );
        }
    }

    #[test]
    fn images_and_labels_are_blended_with_one_weight() {
        let (bytes, floats) = (
            images(DataType::UInt8, vec![1, 2, 3], &["H", "W", "C"]),
            images(DataType::Float32, vec![1, 2, 3], &["H", "W", "C"]),
        );
        let call = call(&MIXUP, 1.0, &bytes);
        let (own, partner): (Vec<u8>, Vec<u8>) = ((0..60).collect(), (0..60).map(|n| 255 - 4 * n).collect());
        let column = |values: &[u8]| list(Arc::new(UInt8Array::from(values.to_vec())), 6);
        let blends: Vec<Blend> = (0..10).map(|key| call.blend(key, 1)).collect();
        let mixed = call.images(&column(&own), &column(&partner), blends.iter().copied()).unwrap();
        let as_floats = |values: &[u8]| cast(&column(values), floats.data_type()).unwrap();
        let exact = call.images(&as_floats(&own), &as_floats(&partner), blends.iter().copied()).unwrap();
        let labels: ArrayRef = Arc::new(Int64Array::from(vec![0; 10]));
        let others: ArrayRef = Arc::new(Int64Array::from(vec![2; 10]));
        let labels = call.labels(&labels, &others, blends.iter().copied()).unwrap();
        let labels = labels.as_fixed_size_list().values().as_primitive::<Float32Type>().values().to_vec();
        let mixed = mixed.as_fixed_size_list().values().as_primitive::<UInt8Type>().values().to_vec();
        let exact = exact.as_fixed_size_list().values().as_primitive::<Float32Type>().values().to_vec();
        for at in 0..60 {
            let [a, nothing, b] = labels[at / 6 * 3..][..3] else { unreachable!() };
            assert!(nothing == 0.0 && (a + b - 1.0).abs() < 1e-6 && a > 0.0 && b > 0.0);
            let expected = f32::from(own[at]) * a + f32::from(partner[at]) * b;
            assert!((exact[at] - expected).abs() < 1e-4);
            assert!((f32::from(mixed[at]) - expected).abs() <= 0.5001, "{} is not {expected}", mixed[at]);
        }
    }

    #[test]
    fn a_box_is_pasted_and_its_area_is_the_partners_share_of_the_label() {
        let (height, width) = (5, 8);
        for (shape, names) in [(vec![height, width, 3], ["H", "W", "C"]), (vec![3, height, width], ["C", "H", "W"])] {
            let call = call(&CUTMIX, 1.0, &images(DataType::UInt8, shape, &names));
            let blends: Vec<Blend> = (0..200).map(|key| call.blend(key, 9)).collect();
            let column = |value: u8| list(Arc::new(UInt8Array::from(vec![value; 200 * 120])), 120);
            let mixed = call.images(&column(1), &column(2), blends.iter().copied()).unwrap();
            let mixed = mixed.as_fixed_size_list().values().as_primitive::<UInt8Type>().values().to_vec();
            let mut sizes = std::collections::BTreeSet::new();
            for (image, blend) in mixed.chunks(120).zip(blends) {
                let Rectangle { top, left, height: rows, width: columns } = blend.pasted;
                let pasted = image.iter().filter(|value| **value == 2).count();
                assert_eq!(pasted, rows * columns * 3);
                assert_eq!(blend.of_label(call.way), 1.0 - (rows * columns) as f32 / (height * width) as f32);
                sizes.insert(pasted);
                for (at, value) in image.iter().enumerate() {
                    let pixel = if names[0] == "H" { at / 3 } else { at % 40 };
                    let inside = (top..top + rows).contains(&(pixel / width))
                        && (left..left + columns).contains(&(pixel % width));
                    assert_eq!(*value == 2, inside);
                }
            }
            assert!(sizes.len() > 10 && sizes.contains(&0), "{sizes:?}");
        }
    }

    #[test]
    fn soft_labels_are_mixed_as_they_are_and_others_are_refused() {
        let image = images(DataType::UInt8, vec![1, 2, 3], &["H", "W", "C"]);
        let soft = Field::new_fixed_size_list("soft", Field::new_list_field(DataType::Float32, true), 2, true);
        let refusal = |alpha: f64, p: f64, classes: Option<i64>, image: &Field, label: &Field| {
            let refused = planned(&CUTMIX, (alpha, p), classes, image, label);
            refused.map(|mix| mix.classes).map_err(|error| error.strip_backtrace())
        };
        let text = Field::new("text", DataType::Utf8, true);
        let number = Field::new("label", DataType::Int32, true);
        assert_eq!(refusal(1.0, 1.0, None, &image, &soft), Ok(2));
        assert_eq!(refusal(1.0, 1.0, Some(2), &image, &Field::new("is_cat", DataType::Boolean, true)), Ok(2));
        for (refused, expected) in [
            (refusal(0.0, 1.0, None, &image, &soft), "\"alpha\" must be above 0, got 0"),
            (refusal(1.0, 1.5, None, &image, &soft), "\"p\" must be between 0 and 1, got 1.5"),
            (refusal(1.0, 1.0, Some(3), &image, &soft), "\"num_classes\" is 3, and \"soft\" has 2"),
            (refusal(1.0, 1.0, None, &image, &number), "\"num_classes\" is missing: labels are mixed as one-hot"),
            (refusal(1.0, 1.0, Some(1 << 20), &image, &number), "must be at most 65536, got 1048576"),
            (
                refusal(1.0, 1.0, None, &image, &text),
                "must be an integer, a boolean or a list of fixed size, and \"text\" is Utf8",
            ),
            (refusal(1.0, 1.0, None, &text, &soft), "\"image\" must be a tensor of uint8 or float32"),
        ] {
            let message = refused.unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_label_that_is_no_class_is_an_error() {
        let call = call(&MIXUP, 1.0, &images(DataType::UInt8, vec![1, 2, 3], &["H", "W", "C"]));
        let labels: ArrayRef = Arc::new(Int64Array::from(vec![3]));
        let error = call.labels(&labels, &labels, [call.blend(1, 1)].into_iter()).unwrap_err();
        assert!(error.strip_backtrace().contains("the label 3 is none of 3 classes"));
    }
}
