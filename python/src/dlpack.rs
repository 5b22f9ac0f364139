//! A tensor that NumPy, PyTorch, JAX and TensorFlow import without a copy.
//!
//! DLPack (<https://dmlc.github.io/dlpack>) is a C structure with an address, a shape and a type, in a capsule. A
//! consumer that takes the structure over renames the capsule. Version 1 states whether the memory is writable; ours
//! is.
#![expect(unsafe_code, reason = "DLPack hands C structures over by address")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use arrow::buffer::Buffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

const LEGACY: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const CPU: i32 = 1;
/// The alignment of copies. TensorFlow assumes it for all memory.
const ALIGNMENT: usize = 64;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DType {
    Bool,
    Int(u8),
    UInt(u8),
    Float(u8),
    BFloat16,
}

impl DType {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Bool => 1,
            Self::BFloat16 => 2,
            Self::Int(bits) | Self::UInt(bits) | Self::Float(bits) => usize::from(bits) / 8,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Bool => "bool".to_owned(),
            Self::BFloat16 => "bfloat16".to_owned(),
            Self::Int(bits) => format!("int{bits}"),
            Self::UInt(bits) => format!("uint{bits}"),
            Self::Float(bits) => format!("float{bits}"),
        }
    }

    fn dlpack(self) -> DlDataType {
        let (code, bits) = match self {
            Self::Int(bits) => (0, bits),
            Self::UInt(bits) => (1, bits),
            Self::Float(bits) => (2, bits),
            Self::BFloat16 => (4, 16),
            Self::Bool => (6, 8),
        };
        DlDataType { code, bits, lanes: 1 }
    }
}

/// Elements in memory, row by row.
#[derive(Clone)]
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Tensor {
    data: Buffer,
    dtype: DType,
    shape: Vec<i64>,
    /// In elements.
    strides: Vec<i64>,
    /// NumPy's type for the elements, if they are times: `M8[D]`, `m8[us]` and so on.
    #[pyo3(get)]
    unit: Option<&'static str>,
}

impl Tensor {
    /// Makes a tensor from the first elements of `data`, as many as `shape` requires.
    pub(crate) fn new(data: Buffer, dtype: DType, shape: Vec<i64>) -> Self {
        let elements: i64 = shape.iter().product();
        assert!(data.len() >= elements as usize * dtype.bytes(), "a tensor of {shape:?} in {} bytes", data.len());
        let mut strides = vec![1; shape.len()];
        for at in (1..shape.len()).rev() {
            strides[at - 1] = strides[at] * shape[at];
        }
        Self { data, dtype, shape, strides, unit: None }
    }

    /// Returns the same elements with permuted dimensions: dimension `at` of the result is dimension `order[at]` of
    /// `self`.
    pub(crate) fn permuted(self, order: &[usize]) -> Self {
        let of = |sides: &[i64]| order.iter().map(|&at| sides[at]).collect();
        Self { shape: of(&self.shape), strides: of(&self.strides), ..self }
    }

    /// Marks the elements as times in `unit`, if it is given.
    pub(crate) fn of(self, unit: Option<&'static str>) -> Self {
        Self { unit, ..self }
    }
}

#[pymethods]
impl Tensor {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    #[getter]
    fn dtype(&self) -> String {
        self.dtype.name()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.shape.iter().product::<i64>() as usize * self.dtype.bytes()
    }

    /// Returns the same memory as integers of the same width, for consumers without bfloat16.
    fn bits(&self) -> Self {
        Self { dtype: DType::UInt((self.dtype.bytes() * 8) as u8), ..self.clone() }
    }

    /// Whether the elements are stored row by row.
    #[getter]
    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&side, &stride)| {
            let fits = side == 1 || stride == expected;
            expected *= side;
            fits
        })
    }

    /// Whether the memory is aligned for the widest vector instructions.
    #[getter]
    fn is_aligned(&self) -> bool {
        self.data.as_ptr().align_offset(ALIGNMENT) == 0
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (CPU, 0)
    }

    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = stream;
        if dl_device.is_some_and(|device| device != (CPU, 0)) {
            return Err(PyBufferError::new_err("the batch is in this machine's memory: DLPack device (1, 0)"));
        }
        let data = match copy {
            Some(true) => Buffer::from(self.data.as_slice()),
            _ => self.data.clone(),
        };
        let held = Held { shape: self.shape.clone(), strides: self.strides.clone(), data };
        match max_version {
            Some((major, _)) if major >= 1 => versioned(py, held, self.dtype),
            _ => legacy(py, held, self.dtype),
        }
    }
}

/// Data that lives as long as the consumer's tensor.
struct Held {
    shape: Vec<i64>,
    /// Strides, in elements. Newer consumers require them even where they follow from the shape.
    strides: Vec<i64>,
    data: Buffer,
}

impl Held {
    fn dlpack(&mut self, dtype: DType) -> DlTensor {
        DlTensor {
            data: self.data.as_ptr().cast_mut().cast(),
            device: DlDevice { device_type: CPU, device_id: 0 },
            ndim: self.shape.len() as i32,
            dtype: dtype.dlpack(),
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: 0,
        }
    }
}

#[repr(C)]
struct DlDevice {
    device_type: i32,
    device_id: i32,
}

#[repr(C)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DlDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Legacy {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Legacy)>,
}

#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: DlTensor,
}

fn legacy(py: Python<'_>, held: Held, dtype: DType) -> PyResult<Bound<'_, PyCapsule>> {
    unsafe extern "C" fn delete(this: *mut Legacy) {
        // SAFETY: called once, by the consumer or the capsule, with the pointer that `legacy` made from two boxes.
        let this = unsafe { Box::from_raw(this) };
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(this.context.cast::<Held>()) });
    }
    unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
        // SAFETY: Python calls this with the capsule. The capsule still has its name only if no consumer took the
        // tensor.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) == 1 {
                delete(ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()).cast());
            }
        }
    }
    let mut held = Box::new(held);
    let tensor = held.dlpack(dtype);
    let managed = Box::new(Legacy { tensor, context: Box::into_raw(held).cast(), deleter: Some(delete) });
    // SAFETY: the pointer comes from a box, and `destroy` frees it if no consumer took the tensor.
    unsafe { capsule(py, Box::into_raw(managed).cast(), LEGACY, destroy) }
}

fn versioned(py: Python<'_>, held: Held, dtype: DType) -> PyResult<Bound<'_, PyCapsule>> {
    unsafe extern "C" fn delete(this: *mut Versioned) {
        // SAFETY: called once, by the consumer or the capsule, with the pointer that `versioned` made from two boxes.
        let this = unsafe { Box::from_raw(this) };
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(this.context.cast::<Held>()) });
    }
    unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
        // SAFETY: Python calls this with the capsule. The capsule still has its name only if no consumer took the
        // tensor.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
                delete(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
            }
        }
    }
    let mut held = Box::new(held);
    let tensor = held.dlpack(dtype);
    let context = Box::into_raw(held).cast();
    let managed = Box::new(Versioned { major: 1, minor: 0, context, deleter: Some(delete), flags: 0, tensor });
    // SAFETY: the pointer comes from a box, and `destroy` frees it if no consumer took the tensor.
    unsafe { capsule(py, Box::into_raw(managed).cast(), VERSIONED, destroy) }
}

/// # Safety
/// `pointer` must be valid content for a capsule with this name, and `destroy` must be able to free it.
unsafe fn capsule<'py>(
    py: Python<'py>,
    pointer: *mut c_void,
    name: &'static CStr,
    destroy: ffi::PyCapsule_Destructor,
) -> PyResult<Bound<'py, PyCapsule>> {
    let pointer = NonNull::new(pointer).expect("a box has an address");
    // SAFETY: the caller guarantees it.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, name, Some(destroy)) }
}
