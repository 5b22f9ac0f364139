//! In-place changes of values that have no other owner. In a chain of calls, only the first one allocates memory.

use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::buffer::{MutableBuffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::DataType;

/// An array without other owners.
pub(crate) struct Own {
    data_type: DataType,
    values: MutableBuffer,
    nulls: Option<NullBuffer>,
}

impl Own {
    /// Takes the array's memory if `array` is its only owner. Otherwise returns the array.
    pub(crate) fn take<T: ArrowPrimitiveType>(array: ArrayRef) -> Result<Self, PrimitiveArray<T>> {
        let values = array.as_primitive::<T>().clone();
        drop(array);
        let (data_type, values, nulls) = values.into_parts();
        let len = values.len();
        match values.into_inner().into_mutable() {
            Ok(mut values) => {
                // A slice shows the beginning of its memory.
                values.truncate(len * size_of::<T::Native>());
                Ok(Self { data_type, values, nulls })
            }
            Err(shared) => {
                let values = ScalarBuffer::new(shared, 0, len);
                Err(PrimitiveArray::new(values, nulls).with_data_type(data_type))
            }
        }
    }

    /// Takes the array's memory, or copies its values if it has another owner.
    pub(crate) fn take_or_copy<T: ArrowPrimitiveType>(array: ArrayRef) -> Self {
        Self::take::<T>(array).unwrap_or_else(|shared| {
            let (data_type, shared, nulls) = shared.into_parts();
            let mut values = MutableBuffer::with_capacity(shared.inner().len());
            values.extend_from_slice(shared.inner());
            Self { data_type, values, nulls }
        })
    }

    /// Returns the values. Values at null positions are arbitrary.
    pub(crate) fn values_mut<T: ArrowPrimitiveType>(&mut self) -> &mut [T::Native] {
        self.values.typed_data_mut()
    }

    /// Returns the array with all values marked as valid.
    pub(crate) fn without_nulls(self) -> Self {
        Self { nulls: None, ..self }
    }

    /// Returns the array, with its nulls.
    pub(crate) fn finish<T: ArrowPrimitiveType>(self) -> ArrayRef {
        let array = PrimitiveArray::<T>::new(self.values.into(), self.nulls);
        Arc::new(array.with_data_type(self.data_type))
    }
}

/// Applies a function to each value, in place if the array has no other owner.
pub(crate) fn map<T: ArrowPrimitiveType>(array: ArrayRef, function: impl Fn(T::Native) -> T::Native) -> ArrayRef {
    match Own::take::<T>(array) {
        Ok(mut own) => {
            own.values_mut::<T>().iter_mut().for_each(|value| *value = function(*value));
            own.finish::<T>()
        }
        Err(shared) => Arc::new(shared.unary::<_, T>(function)),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, Int32Array};
    use arrow::datatypes::Int32Type;

    use super::*;

    fn place(array: &ArrayRef) -> *const i32 {
        array.as_primitive::<Int32Type>().values().as_ptr()
    }

    #[test]
    fn memory_is_used_again_unless_somebody_else_holds_it() {
        let array: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3)]));
        let before = place(&array);
        let doubled = map::<Int32Type>(array, |x| 2 * x);
        assert_eq!(place(&doubled), before);
        assert_eq!(doubled.as_ref(), &Int32Array::from(vec![Some(2), None, Some(6)]));
        for (from, len, expected) in
            [(0, 3, [Some(3), None, Some(7)].as_slice()), (0, 2, &[Some(3), None]), (1, 2, &[None, Some(7)])]
        {
            let changed = map::<Int32Type>(doubled.slice(from, len), |x| x + 1);
            assert_eq!(changed.as_ref(), &Int32Array::from(expected.to_vec()));
            assert_eq!(doubled.as_ref(), &Int32Array::from(vec![Some(2), None, Some(6)]));
        }
        let first = doubled.slice(0, 2);
        drop(doubled);
        assert_eq!(map::<Int32Type>(first, |x| x + 1).as_ref(), &Int32Array::from(vec![Some(3), None]));
    }
}
