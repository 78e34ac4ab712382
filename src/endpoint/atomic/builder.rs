//! Turns the description of an atomic operation into one that can be posted.

use crate::buf::{ConvertMany, LocalUse, Payload};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::info::{AtomicAttr, AtomicOp, AtomicType, CompareOp};
use crate::mr::{Access, RegionSlice};
use crate::progress::PostOptions;
use crate::proto::{AtomicRequest, OpKind};
use crate::wire::{AtomicCall, AtomicForm, BIG_ENDIAN};

use super::super::common::{Common, check_inject};
use super::super::kind::AtomicKind;
use super::super::post::{self, Posting};
use super::super::remote::RemoteRegions;
use super::super::target::{PostTarget, atomic_caps, fence_caps};
use super::operands::{AtomicMemory, AtomicValue, Operands};

/// The description of an atomic operation, as the calls of an endpoint fill it in.
pub(super) struct Described {
    target: PostTarget,
    call: AtomicCall,
    /// The numbers that one operation may have; `None`: the operation is not offered.
    attr: Option<AtomicAttr>,
    operands: AtomicMemory,
    compare: Option<AtomicMemory>,
    /// The memory that results are written to, if they do not go to the operation's future.
    results: Option<AtomicMemory>,
    remote: RemoteRegions,
    pub(super) options: PostOptions,
}

impl Described {
    fn new<O: Operands>(
        target: PostTarget,
        (form, operation): (AtomicForm, u8),
        attr: Option<AtomicAttr>,
        operands: O,
        remote: RemoteRegions,
    ) -> Self {
        Described {
            target,
            call: AtomicCall {
                form,
                operation,
                numbers: numbers_here(O::Value::TYPE),
            },
            attr,
            operands: operands.into_memory(),
            compare: None,
            results: None,
            remote,
            options: PostOptions::default(),
        }
    }

    pub(super) fn update<O: Operands>(
        target: PostTarget,
        op: AtomicOp,
        operands: O,
        remote: RemoteRegions,
    ) -> Self {
        let attr = op.attr(O::Value::TYPE, false);
        let what = (AtomicForm::Update, op.to_number());
        Described::new(target, what, attr, operands, remote)
    }

    pub(super) fn fetch<O: Operands>(
        target: PostTarget,
        op: AtomicOp,
        operands: O,
        remote: RemoteRegions,
    ) -> Self {
        let attr = op.attr(O::Value::TYPE, true);
        let what = (AtomicForm::Fetch, op.to_number());
        Described::new(target, what, attr, operands, remote)
    }

    pub(super) fn compare<O: Operands>(
        target: PostTarget,
        op: CompareOp,
        compare: impl Operands,
        operands: O,
        remote: RemoteRegions,
    ) -> Self {
        let attr = op.attr(O::Value::TYPE);
        let what = (AtomicForm::Compare, op.to_number());
        Described {
            compare: Some(compare.into_memory()),
            ..Described::new(target, what, attr, operands, remote)
        }
    }

    pub(super) fn put_results_into(&mut self, slice: RegionSlice) {
        self.results = Some(AtomicMemory::region(slice));
    }

    fn operation_kind(&self) -> OperationKind {
        match self.call.form {
            AtomicForm::Update => OperationKind::Atomic,
            AtomicForm::Fetch | AtomicForm::Compare => OperationKind::FetchAtomic,
        }
    }

    fn only_reads(&self) -> bool {
        self.call.form == AtomicForm::Fetch && self.call.operation == AtomicOp::Read.to_number()
    }

    fn need(&self) -> Access {
        match self.call.form {
            AtomicForm::Update => Access::REMOTE_WRITE,
            _ if self.only_reads() => Access::REMOTE_READ,
            AtomicForm::Fetch | AtomicForm::Compare => Access::REMOTE,
        }
    }

    /// Checks everything that does not need the memory.
    fn check(&self) -> Result<()> {
        let error = |kind, message: String| Err(Error::new(kind, message));
        let need = atomic_caps(self.call) | fence_caps(&self.options);
        self.target.common().caps.check(need)?;
        let Some(AtomicAttr { count, size }) = self.attr else {
            let message = "it is not offered for numbers of this type, or fetches nothing";
            return error(ErrorKind::Unsupported, message.into());
        };
        let len = self.operands.len();
        if len == 0 || !len.is_multiple_of(size) {
            let message = format!("operands: {len} bytes are no numbers of {size} bytes each");
            return error(ErrorKind::InvalidArgument, message);
        }
        if len / size > count {
            let message = format!("{} numbers, an operation takes at most {count}", len / size);
            return error(ErrorKind::TooLarge, message);
        }
        for (memory, name) in [(&self.compare, "compare"), (&self.results, "results_into")] {
            if let Some(other) = memory
                .as_ref()
                .map(AtomicMemory::len)
                .filter(|it| *it != len)
            {
                let message = format!("{name} has {other} bytes, the operands have {len}");
                return error(ErrorKind::InvalidArgument, message);
            }
        }
        Ok(())
    }

    /// Builds the operation, with a copy of everything that it takes by value.
    pub(super) fn prepare(self) -> Result<Posting<AtomicMemory, AtomicKind>> {
        let operation = self.operation_kind();
        self.try_prepare()
            .map_err(|error| error.with_operation(operation))
    }

    fn try_prepare(self) -> Result<Posting<AtomicMemory, AtomicKind>> {
        self.check()?;
        let mut sent = Vec::new();
        let (need, only_reads) = (self.need(), self.only_reads());
        let Described {
            target,
            call,
            operands,
            compare,
            results,
            remote,
            options,
            ..
        } = self;
        let fetches = call.form != AtomicForm::Update;
        let memory = match fetches {
            false => operands,
            true => {
                let len = operands.len();
                if !only_reads {
                    copy_out(operands, target.common(), &mut sent)?;
                }
                if let Some(compare) = compare {
                    copy_out(compare, target.common(), &mut sent)?;
                }
                results.unwrap_or_else(|| AtomicMemory::zeros(len))
            }
        };
        let request = AtomicRequest {
            call,
            segments: remote.segments(need, &target.common().domain)?,
            operands: fetches.then(|| Payload::copied(&sent)),
        };
        let mut posting = Posting::new(target, memory, Ok(OpKind::Atomic(Box::new(request))));
        posting.options = options;
        Ok(posting)
    }

    /// Posts a copy of the operands. Only counters count its end.
    pub(super) fn inject(self) -> Result<()> {
        let operation = self.operation_kind();
        let inject = || {
            self.check()?;
            let mut bytes = Vec::new();
            match self.operands.own() {
                Some(own) => bytes.extend_from_slice(own),
                None => copy_out(self.operands, self.target.common(), &mut bytes)?,
            }
            check_inject(&bytes)?;
            let domain = &self.target.common().domain;
            let request = AtomicRequest {
                call: self.call,
                segments: self.remote.segments(Access::REMOTE_WRITE, domain)?,
                operands: None,
            };
            post::inject(self.target, OpKind::Atomic(Box::new(request)), &bytes)
        };
        inject().map_err(|error| error.with_operation(operation))
    }
}

debug_fields!(Described, self =>
    endpoint: self.target.common().id, call: self.call, len: self.operands.len()
);

/// Returns the number type as the wire names it, with this machine's byte order.
fn numbers_here(datatype: AtomicType) -> u64 {
    let order = if cfg!(target_endian = "big") {
        BIG_ENDIAN
    } else {
        0
    };
    u64::from(datatype.to_number()) | order
}

/// Appends the bytes of the operands, if this endpoint may use their memory.
fn copy_out(memory: AtomicMemory, common: &Common, into: &mut Vec<u8>) -> Result<()> {
    common.check_buffers(&memory)?;
    if let Some(own) = memory.own() {
        into.extend_from_slice(own);
        return Ok(());
    }
    let payload = memory.into_payload(LocalUse::Write);
    let payload = payload.map_err(|(error, _)| error)?;
    common.check_regions(&payload)?;
    let start = into.len();
    into.resize(start + payload.len(), 0);
    payload
        .copy_out(0, &mut into[start..])
        .map_err(|denied| denied.error("operands were copied from it"))
}
