//! The arguments of a call, by name.

use arrow::array::{Array, ArrayRef, AsArray, UInt64Array};
use arrow::datatypes::{DataType, FieldRef, UInt64Type};
use datafusion::common::{DataFusionError, Result, exec_err, internal_datafusion_err, internal_err, plan_err};
use datafusion::logical_expr::ColumnarValue;
use datafusion::scalar::ScalarValue;

use crate::constants;
use crate::descriptor::{Descriptor, ParameterKind};
use crate::keyed::Draws;

/// The arguments of one call, by name.
///
/// Asking for a name or a kind that the descriptor does not have is a bug of the operator and an internal error.
#[derive(Debug)]
pub struct Arguments {
    descriptor: &'static Descriptor,
    fields: Vec<FieldRef>,
    constants: Vec<Option<ScalarValue>>,
    pub(crate) arrays: Vec<Option<ArrayRef>>,
    pub(crate) keys: Option<Keys>,
    pub(crate) step_lengths: Option<UInt64Array>,
    pub(crate) rows: usize,
}

/// The random keys of the rows, and the call's site.
#[derive(Debug)]
pub(crate) struct Keys {
    keys: UInt64Array,
    site: u64,
}

impl Arguments {
    /// The number of rows to compute.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The field of an input.
    pub fn field(&self, name: &str) -> Result<&FieldRef> {
        let position = self.position(name)?;
        self.fields.get(position).ok_or_else(|| self.undeclared(name, "an input"))
    }

    /// Whether an input that may be left out is there.
    pub fn is_given(&self, name: &str) -> bool {
        let field = self.position(name).ok().and_then(|position| self.fields.get(position));
        field.is_some_and(|field| *field.data_type() != DataType::Null)
    }

    /// The values of an input.
    pub fn array(&self, name: &str) -> Result<&ArrayRef> {
        let position = self.position(name)?;
        self.arrays.get(position).and_then(Option::as_ref).ok_or_else(|| self.undeclared(name, "an input"))
    }

    /// The values of an input, moved out. A second call for the same name is an internal error.
    pub fn take_array(&mut self, name: &str) -> Result<ArrayRef> {
        let position = self.position(name)?;
        match self.arrays.get_mut(position).and_then(Option::take) {
            Some(array) => Ok(array),
            None => Err(self.undeclared(name, "an input")),
        }
    }

    /// Whether all constants are known. Fitted ones are not while a query is planned whose fits have not run.
    pub fn are_known(&self) -> bool {
        let mut parameters = self.descriptor.parameters.iter().zip(&self.constants);
        parameters
            .all(|(parameter, constant)| constant.is_some() || !matches!(parameter.kind, ParameterKind::Constant(_)))
    }

    /// A positive integer.
    pub fn positive(&self, name: &str) -> Result<usize> {
        let value = self.constant(name, "a positive integer", constants::integer)?;
        usize::try_from(value).map_err(|_| self.undeclared(name, "a positive integer"))
    }

    /// An integer.
    pub fn integer(&self, name: &str) -> Result<i64> {
        self.constant(name, "an integer", constants::integer)
    }

    /// A finite number.
    pub fn number(&self, name: &str) -> Result<f64> {
        self.constant(name, "a number", constants::number)
    }

    /// A list of finite numbers; one number is a list of one.
    pub fn numbers(&self, name: &str) -> Result<Vec<f64>> {
        self.constant(name, "a list of numbers", constants::number_or_list)
    }

    /// A list of strings.
    pub fn texts(&self, name: &str) -> Result<Vec<String>> {
        self.constant(name, "a list of strings", constants::texts)
    }

    /// A string.
    pub fn text(&self, name: &str) -> Result<String> {
        self.constant(name, "a string", |value| constants::text(value).map(str::to_owned))
    }

    /// True or false.
    pub fn flag(&self, name: &str) -> Result<bool> {
        self.constant(name, "true or false", |value| match value {
            ScalarValue::Boolean(flag) => *flag,
            _ => None,
        })
    }

    /// The random numbers of one row. An error when the call carries no keys, that is outside a feed.
    pub fn draws(&self, row: usize) -> Result<Draws> {
        match &self.keys {
            Some(keys) => Ok(keys.draws(row)),
            None => exec_err!("{} draws from a feed's key, so it only runs inside a pipeline", self.descriptor.name),
        }
    }

    /// The random numbers of one row where there are keys. A deterministic operator gets some as well, and asks for
    /// none.
    pub(crate) fn draws_of(&self, row: usize) -> Draws {
        self.keys.as_ref().map_or(Draws::new(0, 0), |keys| keys.draws(row))
    }

    /// The longest length that rows of a row's global step may have: 0 where rows are not grouped by length.
    pub fn step_length(&self, row: usize) -> u64 {
        self.step_lengths.as_ref().map_or(0, |lengths| lengths.value(row))
    }

    /// A planning error about one argument: `resize: "height" must be below 16384, got 20000`.
    pub fn refuse<T>(&self, name: &str, problem: impl std::fmt::Display) -> Result<T> {
        plan_err!("{}: \"{name}\" {problem}", self.descriptor.name)
    }

    /// An error about a file that an argument names: a planning error while the call is planned. While it is evaluated,
    /// an error of the machine, since the file could be used before and no row is at fault.
    pub fn refuse_file<T>(&self, name: &str, problem: impl std::fmt::Display) -> Result<T> {
        match self.arrays.is_empty() {
            true => self.refuse(name, problem),
            false => {
                let message = format!("{}: \"{name}\" {problem}", self.descriptor.name);
                Err(DataFusionError::External(Box::new(std::io::Error::other(message))))
            }
        }
    }

    fn constant<T>(&self, name: &str, kind: &str, read: impl Fn(&ScalarValue) -> Option<T>) -> Result<T> {
        let position = self.position(name)?;
        let value = self.constants.get(position).and_then(Option::as_ref);
        value.and_then(read).ok_or_else(|| self.undeclared(name, kind))
    }

    fn position(&self, name: &str) -> Result<usize> {
        self.descriptor.position(name).ok_or_else(|| self.undeclared(name, "a parameter"))
    }

    fn undeclared(&self, name: &str, kind: &str) -> datafusion::common::DataFusionError {
        internal_datafusion_err!("{} asks for \"{name}\" as {kind}, which it does not declare", self.descriptor.name)
    }

    /// Reads a call's arguments: checks how many there are, the inputs' types and each constant on its own.
    pub(crate) fn resolve(
        descriptor: &'static Descriptor,
        fields: &[FieldRef],
        scalars: &[Option<&ScalarValue>],
    ) -> Result<(Self, bool)> {
        let parameters = descriptor.parameters;
        let hidden = descriptor.determinism.hidden_arguments();
        let is_complete = !hidden.is_empty() && fields.len() == parameters.len() + hidden.len();
        if fields.len() > parameters.len() && !is_complete {
            let names: Vec<_> = parameters.iter().map(|p| p.name).collect();
            return plan_err!(
                "{}: takes {} arguments ({}), got {}",
                descriptor.name,
                parameters.len(),
                names.join(", "),
                fields.len()
            );
        }
        let mut constants = vec![None; parameters.len()];
        for (i, parameter) in parameters.iter().enumerate() {
            let name = parameter.name;
            match (parameter.kind, fields.get(i)) {
                (ParameterKind::Input(class), Some(field)) => {
                    let is_left_out = parameter.default.is_some() && *field.data_type() == DataType::Null;
                    if !is_left_out && !class.accepts(field) {
                        let got = crate::image_column::wording(field);
                        return plan_err!("{}: \"{name}\" must be {}, got {got}", descriptor.name, class.wording());
                    }
                }
                (kind @ ParameterKind::Constant(_), Some(_)) => {
                    let Some(value) = scalars.get(i).copied().flatten() else {
                        if parameter.is_fitted {
                            continue;
                        }
                        return plan_err!(
                            "{}: \"{name}\" must be {} written as a constant, got a value per row",
                            descriptor.name,
                            kind.wording()
                        );
                    };
                    if let Err(problem) = kind.check(value) {
                        return plan_err!("{}: \"{name}\" {problem}", descriptor.name);
                    }
                    constants[i] = Some(value.clone());
                }
                (ParameterKind::Rows, Some(_)) => {
                    return internal_err!("{} is called with rows: it is no table operator", descriptor.name);
                }
                (_, None) => match parameter.default_value() {
                    Some(value) => constants[i] = Some(value),
                    None => return plan_err!("{}: \"{name}\" is missing", descriptor.name),
                },
            }
        }
        if is_complete {
            for (name, field) in hidden.iter().zip(&fields[parameters.len()..]) {
                if *field.data_type() != DataType::UInt64 {
                    return internal_err!("{}: \"{name}\" must be UInt64, got {}", descriptor.name, field.data_type());
                }
            }
        }
        let fields = fields.iter().take(parameters.len()).cloned().collect();
        let arrays = vec![];
        Ok((Self { descriptor, fields, constants, arrays, keys: None, step_lengths: None, rows: 0 }, is_complete))
    }
}

impl Keys {
    pub(crate) fn read(descriptor: &Descriptor, arguments: &[ColumnarValue], rows: usize) -> Result<Self> {
        let [keys, ColumnarValue::Scalar(ScalarValue::UInt64(Some(site)))] = arguments else {
            return internal_err!("{}: \"site\" must be a UInt64 literal", descriptor.name);
        };
        let keys = keys.to_array(rows)?.as_primitive::<UInt64Type>().clone();
        if keys.null_count() > 0 {
            return internal_err!("{}: \"random_key\" has nulls", descriptor.name);
        }
        Ok(Self { keys, site: *site })
    }

    /// The random numbers of one row.
    pub(crate) fn draws(&self, row: usize) -> Draws {
        Draws::new(self.keys.value(row), self.site)
    }
}
