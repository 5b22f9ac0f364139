//! `random_pick`: one of several values, such as views of an image.
//!
//! Called like any operator, it computes all alternatives and keeps one for each row. A plan that is ready to run
//! computes only the one that is drawn ([`pick_lazily`]), with the same result.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, UInt64Array};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::type_coercion::binary::type_union_resolution;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::physical_expr::expressions::{CaseExpr, Column, Literal, lit};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use forebay_arrays::{FixedShapeTensor, TensorType, VariableShapeTensor};

use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Parameter, TypeClass};
use crate::image_column::wording;
use crate::keyed::Draws;
use crate::operator::{Arguments, Operator, OperatorUdf};
use crate::{arguments::Keys, hash_split::shares_to_limits};

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

const fn another(name: &'static str) -> Parameter {
    Parameter::input(name, TypeClass::Any, "Another value").or("NULL")
}

static DESCRIPTOR: Descriptor = Descriptor {
    name: "random_pick",
    category: "random",
    summary: "Draws one of several values for each row, such as one of several crops of an image",
    parameters: &[
        Parameter::input("a", TypeClass::Any, "The first value"),
        Parameter::input("b", TypeClass::Any, "The second value"),
        another("c"),
        another("d"),
        another("e"),
        another("f"),
        another("g"),
        another("h"),
        Parameter::constant("weights", ConstantKind::NumberOrList, "How often each value is drawn, in proportion")
            .or("1")
            .like("[0.8, 0.2]"),
        Parameter::KEY,
    ],
    returns: "the type of the values, with the shape of a tensor",
    determinism: Determinism::KeyedRandom,
    docs: "Takes two to eight values of one type, and of one shape if they are tensors; numbers and texts are converted \
           to a common type. In SELECT only the value that is drawn is computed, so the others cost nothing and cannot fail. A \
           column that is always null, as `NULL` is, counts as left out. The draw depends only on the feed's seed, the \
           epoch, the sample and the call. With one key, calls with the same weights draw the same place. Null if the \
           value that is drawn is null.",
    source: "torchvision's `RandomChoice` and `RandomApply`, with the draws of the row's random key",
    examples: &[
        Example {
            sql: "random_pick(resize(image, 8, 8), random_crop(image, 8, 8))",
            result: "another of the two in each epoch",
        },
        Example {
            sql: "random_pick(caption, '', weights => [0.9, 0.1])",
            result: "no caption for a tenth of the rows",
        },
    ],
    ..Descriptor::BASE
};

/// The operator `random_pick`.
#[derive(Debug)]
pub(crate) struct RandomPick;

impl Operator for RandomPick {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn coerce(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let mut coerced = types.to_vec();
        let values = coerced.iter_mut().take(NAMES.len()).filter(|data_type| **data_type != DataType::Null);
        let values: Vec<&mut DataType> = values.collect();
        let common = type_union_resolution(&values.iter().map(|data_type| (**data_type).clone()).collect::<Vec<_>>());
        let differ = values.windows(2).any(|pair| pair[0] != pair[1]);
        // The union of two nested types would lose the shape of tensors in it.
        if let Some(common) = common.filter(|common| differ && !common.is_nested()) {
            values.into_iter().for_each(|data_type| *data_type = common.clone());
        }
        Ok(coerced)
    }

    fn conditional_arguments(&self) -> usize {
        NAMES.len()
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        limits(arguments)?;
        let first = arguments.field("a")?;
        let mut is_nullable = false;
        for name in given(arguments) {
            let field = arguments.field(name)?;
            if !are_alike(field, first) {
                let (got, expect) = (wording(field), wording(first));
                return arguments.refuse(name, format_args!("must be {expect} like \"a\", got {got}"));
            }
            is_nullable |= field.is_nullable();
        }
        Ok(first.as_ref().clone().with_name("picked").with_nullable(is_nullable))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let limits = limits(arguments)?;
        let arrays = given(arguments).map(|name| Ok(arguments.array(name)?.as_ref())).collect::<Result<Vec<_>>>()?;
        let drawn = |row: usize| Ok((place(&mut arguments.draws(row)?, &limits), row));
        Ok(interleave(&arrays, &(0..arguments.rows()).map(drawn).collect::<Result<Vec<_>>>()?)?)
    }
}

/// Whether two fields have values of one type, and of one shape if they are tensors, whose dimensions need no names.
fn are_alike(one: &Field, other: &Field) -> bool {
    let nameless = |field: &Field| match TensorType::of(field)? {
        TensorType::Fixed(tensor) => Some(TensorType::Fixed(FixedShapeTensor { names: None, ..tensor })),
        TensorType::Variable(tensor) => Some(TensorType::Variable(VariableShapeTensor { names: None, ..tensor })),
    };
    let tensors = (nameless(one), nameless(other));
    let is_one_type = if tensors.0.is_none() { one.metadata() == other.metadata() } else { tensors.0 == tensors.1 };
    one.data_type() == other.data_type() && is_one_type
}

fn given(arguments: &Arguments) -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().filter(|name| arguments.is_given(name))
}

/// Returns the end of each value's share of the numbers from 0 to 1, without the last one, which has no limit.
fn limits(arguments: &Arguments) -> Result<Vec<f64>> {
    let values = given(arguments).count();
    let weights = match &arguments.numbers("weights")?[..] {
        [1.0] => vec![1.0; values],
        weights if weights.len() == values => weights.to_vec(),
        weights => {
            let problem = format_args!("must have one number for each of {values} values, got {}", weights.len());
            return arguments.refuse("weights", problem);
        }
    };
    shares_to_limits(arguments, "weights", &weights)
}

fn place(draws: &mut Draws, limits: &[f64]) -> usize {
    let number = draws.uniform();
    limits.iter().take_while(|limit| number >= **limit).count()
}

/// Makes each call of `random_pick` in `expr` compute only the values that it draws, if they cost anything.
///
/// `schema` is the schema of the input rows.
pub fn pick_lazily(expr: Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    expr.transform_up(|expr| {
        Ok(match lazy(&expr, schema)? {
            Some(lazy) => Transformed::yes(lazy),
            None => Transformed::no(expr),
        })
    })
    .data()
}

fn lazy(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() else { return Ok(None) };
    let is_pick = |udf: &OperatorUdf| std::ptr::eq(udf.operator().descriptor(), &DESCRIPTOR);
    let [values @ .., key, site] = call.args() else { return Ok(None) };
    if !call.fun().inner().downcast_ref::<OperatorUdf>().is_some_and(is_pick)
        || values.iter().all(|value| value.is::<Column>() || value.is::<Literal>())
    {
        return Ok(None);
    }
    let fields = call.args().iter().map(|arg| arg.return_field(schema)).collect::<Result<Vec<_>>>()?;
    let scalars: Vec<_> = call.args().iter().map(|arg| arg.downcast_ref::<Literal>().map(Literal::value)).collect();
    let (arguments, is_complete) = Arguments::resolve(&DESCRIPTOR, &fields, &scalars)?;
    if !is_complete {
        return Ok(None);
    }
    let config = || Arc::new(call.config_options().clone());
    let limits = limits(&arguments)?.into_iter().map(f64::to_bits).collect();
    let drawn = ScalarUDF::from(PlaceUdf { limits, signature: Signature::any(2, Volatility::Immutable) });
    let drawn: Arc<dyn PhysicalExpr> = Arc::new(ScalarFunctionExpr::new(
        "random_place",
        Arc::new(drawn),
        vec![Arc::clone(key), Arc::clone(site)],
        Arc::new(Field::new("place", DataType::UInt64, false)),
        config(),
    ));
    let given = NAMES.iter().zip(values).filter(|(name, _)| arguments.is_given(name));
    let mut given: Vec<_> = given.map(|(_, value)| Arc::clone(value)).collect();
    let last = given.pop();
    let cases = given.into_iter().zip(0u64..).map(|(value, place)| (lit(place), value)).collect();
    let case = CaseExpr::try_new(Some(drawn), cases, last)?;
    let shaped = ScalarUDF::from(ShapedUdf { signature: Signature::any(1, Volatility::Immutable) });
    let field = call.return_field(schema)?;
    Ok(Some(Arc::new(ScalarFunctionExpr::new(call.name(), Arc::new(shaped), vec![Arc::new(case)], field, config()))))
}

/// The place of the value that each row draws, from its key and the site.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PlaceUdf {
    /// The bits of the limits, so that calls can be compared.
    limits: Vec<u64>,
    signature: Signature,
}

impl ScalarUDFImpl for PlaceUdf {
    fn name(&self) -> &str {
        "random_place"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::UInt64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let keys = Keys::read(&DESCRIPTOR, &args.args, args.number_rows)?;
        let limits: Vec<f64> = self.limits.iter().map(|limit| f64::from_bits(*limit)).collect();
        let places = (0..args.number_rows).map(|row| place(&mut keys.draws(row), &limits) as u64);
        Ok(ColumnarValue::Array(Arc::new(UInt64Array::from_iter_values(places))))
    }
}

/// Gives a value the field of its call: CASE forgets the shape of a tensor.
#[derive(Debug)]
struct ShapedUdf {
    signature: Signature,
}

impl PartialEq for ShapedUdf {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ShapedUdf {}

impl Hash for ShapedUdf {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl ScalarUDFImpl for ShapedUdf {
    fn name(&self) -> &str {
        "random_pick"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("{} is made after planning, with its return field", self.name())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match <[ColumnarValue; 1]>::try_from(args.args) {
            Ok([value]) => Ok(value),
            Err(args) => internal_err!("random_pick shapes {} values", args.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray, Int64Array, RecordBatch};
    use arrow::datatypes::{Int64Type, UInt8Type};
    use datafusion::common::DFSchema;
    use datafusion::prelude::{Expr, SessionContext, col, lit};
    use datafusion::scalar::ScalarValue;

    use super::*;
    use crate::testing::{Column, column, fixed, keyed, keys, noise, select, udf};

    const ROWS: u64 = 6_000;

    fn pick(values: Vec<Expr>, weights: Vec<f64>) -> Expr {
        let values = values.into_iter().chain(vec![lit(ScalarValue::Null); 8]).take(8);
        let weights: Vec<_> = weights.into_iter().map(ScalarValue::from).collect();
        let weights = match weights.is_empty() {
            true => lit(1),
            false => lit(ScalarValue::List(ScalarValue::new_list(&weights, &DataType::Float64, false))),
        };
        keyed("random_pick", values.chain([weights]).collect())
    }

    fn numbers(name: &str, of: impl Fn(i64) -> i64) -> Column {
        column(name, Int64Array::from_iter_values((0..ROWS as i64).map(of)))
    }

    /// Returns the result of a call that was planned, without and with the rewrite.
    fn both(call: &Expr, columns: Vec<Column>) -> [Result<ArrayRef>; 2] {
        let (fields, arrays): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        let schema = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).unwrap();
        let named = DFSchema::try_from(schema.as_ref().clone()).unwrap();
        let eager = SessionContext::new().create_physical_expr(call.clone(), &named).unwrap();
        let lazy = pick_lazily(Arc::clone(&eager), &schema).unwrap();
        assert!(lazy.to_string().contains("CASE") && !eager.to_string().contains("CASE"), "{lazy}");
        assert_eq!(lazy.return_field(&schema).unwrap(), eager.return_field(&schema).unwrap());
        [eager, lazy].map(|expr| expr.evaluate(&batch)?.into_array(batch.num_rows()))
    }

    #[test]
    fn values_are_drawn_as_often_as_their_weights_say() {
        let check = |weights: Vec<f64>, expect: [usize; 3]| {
            let columns = vec![numbers("a", |_| 0), numbers("b", |_| 1), numbers("c", |_| 2), keys(ROWS)];
            let (_, got) = select(pick(vec![col("a"), col("b"), col("c")], weights), columns).unwrap();
            let got = got.as_primitive::<Int64Type>().clone();
            let counts = [0, 1, 2].map(|value| got.values().iter().filter(|got| **got == value).count());
            assert!(counts.iter().zip(expect).all(|(got, expect)| got.abs_diff(expect) < 150), "{counts:?}");
        };
        check(vec![], [2_000; 3]);
        check(vec![1.0, 2.0, 3.0], [1_000, 2_000, 3_000]);
        check(vec![0.5, 0.0, 0.5], [3_000, 0, 3_000]);
    }

    #[test]
    fn only_the_drawn_value_is_computed_and_it_is_the_same() {
        let columns = || vec![numbers("a", |n| n), numbers("b", |n| n % 2), keys(ROWS)];
        let call = pick(vec![col("a") + lit(1_i64), col("a") * lit(-1_i64), col("b")], vec![]);
        let [eager, lazy] = both(&call, columns()).map(Result::unwrap);
        assert_eq!(&eager, &lazy);
        let call = pick(vec![col("a") + lit(1_i64), col("a") / lit(0_i64)], vec![1.0, 0.0]);
        let [eager, lazy] = both(&call, columns());
        assert!(eager.unwrap_err().to_string().contains("Divide by zero"));
        assert_eq!(lazy.unwrap().as_primitive::<Int64Type>().value(7), 8);
    }

    #[test]
    fn pictures_keep_their_shape() {
        let rows = 4;
        let (field, images) = noise();
        let indices = UInt64Array::from_iter_values((0..rows).map(|row| row % images.len() as u64));
        let images = arrow::compute::take(&images, &indices, None).unwrap();
        let flip = |name: &str| udf(name).call(vec![col("image"), lit(8), lit(4)]);
        let call = pick(vec![flip("resize"), flip("center_crop")], vec![]);
        let [eager, lazy] = both(&call, vec![(field, images), keys(rows)]).map(Result::unwrap);
        assert_eq!(&eager, &lazy);
        assert_eq!(lazy.as_fixed_size_list().values().as_primitive::<UInt8Type>().len(), rows as usize * 8 * 4 * 3);
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        let check = |values: Vec<Expr>, weights: Vec<f64>, columns: Vec<Column>, expect: &str| {
            let columns = columns.into_iter().chain([keys(1)]).collect();
            let got = select(pick(values, weights), columns).unwrap_err();
            assert!(got.contains(expect), "{got}");
        };
        let one = |name: &str| column(name, Int64Array::from(vec![1]));
        let image = |name: &str, height, width| {
            (
                fixed(height, width, vec![0; height * width * 3]).0.with_name(name),
                fixed(height, width, vec![0; height * width * 3]).1,
            )
        };
        let (a, b) = (col("a"), col("b"));
        check(
            vec![a.clone(), b.clone()],
            vec![0.5],
            vec![one("a"), one("b")],
            "\"weights\" must have one number for each of 2 values, got 1",
        );
        check(
            vec![a.clone(), b.clone()],
            vec![0.0, 0.0],
            vec![one("a"), one("b")],
            "\"weights\" must have a finite sum above 0",
        );
        check(vec![a, b], vec![], vec![image("a", 2, 3), image("b", 3, 2)], "\"b\" must be");
    }
}
