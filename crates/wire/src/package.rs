//! The declaration of an RPC package, and the code that a declaration generates.
//!
//! Each package is one `package!` in its own module. It generates:
//!
//! * a structure of arguments and one of results for every procedure, with their XDR forms;
//! * the opcode and name of each procedure ([`Procedure`]);
//! * the table for dispatch and statistics ([`Package`]);
//! * `Serve` and `serve`, through which servers answer calls ([`crate::serve`]);
//! * `Request`, which decodes any request of the package (for traces, tests and fuzzing).
//!
//! Procedures that every server refuses are declared too, with the code: `refuses EINVAL`. So
//! statistics know their names, and a refusal is deliberate, not an omission.

use std::fmt::Debug;

use bytes::{BufMut, Bytes, BytesMut};
use cellar_xdr::{Decode, DecodeError, Decoder, Encode};

use crate::abort::AbortCode;

/// Raw bytes that a call carries besides arguments and results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// None: arguments, then results.
    None,
    /// The client sends bytes after the arguments.
    Request,
    /// The server sends bytes before the results.
    Reply,
    /// The client sends bytes after the arguments, then the server before the results.
    Both,
    /// The results themselves, which may be too long for memory.
    Results,
}

/// One procedure of a package, as dispatch and statistics see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcedureInfo {
    /// The first word of a request.
    pub opcode: u32,
    /// The name without the package's prefix, for example `FetchData64`.
    pub name: &'static str,
    /// Place in the declaration: the function index of RPC statistics.
    pub index: usize,
    /// The streamed bytes.
    pub stream: Stream,
    /// The name of the abort code with which Cellar's servers refuse every call.
    pub refuses: Option<&'static str>,
}

/// An RPC package: a set of procedures behind one service number.
#[derive(Debug)]
pub struct Package {
    /// The customary name, for example `RXAFS`.
    pub name: &'static str,
    /// The Rx service number.
    pub service_id: u16,
    /// The customary UDP port of its servers; 0 when it is served on every port.
    pub port: u16,
    /// The interface number in RPC statistics.
    pub statistics_index: u32,
    /// The procedures, in the order of their opcodes.
    pub procedures: &'static [ProcedureInfo],
}

impl Package {
    /// The procedure with `opcode`, if it is declared.
    pub fn procedure(&self, opcode: u32) -> Option<&'static ProcedureInfo> {
        let place = self
            .procedures
            .binary_search_by_key(&opcode, |procedure| procedure.opcode);
        self.procedures.get(place.ok()?)
    }
}

/// The arguments of one procedure. The type determines the procedure.
pub trait Procedure: Encode + Decode + Debug + Clone + Send + Sync + 'static {
    /// The results.
    type Reply: Encode + Decode + Debug + Clone + Send + Sync + 'static;
    /// The first word of the request.
    const OPCODE: u32;
    /// The name without the package's prefix.
    const NAME: &'static str;
    /// The name with the package's prefix, as in logs, for example `PR_NewEntry`.
    const QUALIFIED_NAME: &'static str = Self::NAME;
    /// The streamed bytes.
    const STREAM: Stream;
    /// Place in the package's table.
    const INDEX: usize;

    /// The package this belongs to.
    fn package() -> &'static Package;

    /// Appends the request: opcode and arguments.
    fn encode_request(&self, buffer: &mut BytesMut) {
        buffer.reserve(4 + Self::MIN_SIZE);
        buffer.put_u32(Self::OPCODE);
        self.encode_to(buffer);
    }

    /// Returns the request in its own buffer.
    fn to_request(&self) -> Bytes {
        let mut buffer = BytesMut::new();
        self.encode_request(&mut buffer);
        buffer.freeze()
    }
}

/// Why a request was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The package has no such procedure.
    #[error("opcode {opcode} is not one of {package}")]
    UnknownOpcode {
        /// The package.
        package: &'static str,
        /// The opcode of the request.
        opcode: u32,
    },
    /// The arguments do not parse.
    #[error("arguments of {procedure}: {cause}")]
    Arguments {
        /// The procedure's name.
        procedure: &'static str,
        /// The error in the arguments.
        cause: DecodeError,
    },
}

impl RequestError {
    /// The error for an opcode that `package` does not have.
    pub const fn unknown_opcode(package: &Package, opcode: u32) -> Self {
        Self::UnknownOpcode {
            package: package.name,
            opcode,
        }
    }

    /// The abort code for the caller.
    pub const fn abort_code(&self) -> AbortCode {
        match self {
            Self::UnknownOpcode { .. } => AbortCode::RXGEN_OPCODE,
            Self::Arguments { .. } => AbortCode::RXGEN_SS_UNMARSHAL,
        }
    }

    /// Whether the request may become valid with more bytes.
    pub const fn is_truncated(&self) -> bool {
        matches!(
            self,
            Self::Arguments {
                cause: DecodeError::Truncated,
                ..
            }
        )
    }
}

/// Decodes the arguments or the results of `procedure`.
///
/// # Errors
/// [`RequestError::Arguments`]: the bytes do not parse.
pub fn decode_for<T: Decode>(
    procedure: &'static str,
    d: &mut Decoder<'_>,
) -> Result<T, RequestError> {
    T::decode(d).map_err(|cause| RequestError::Arguments { procedure, cause })
}

/// Any request of a package, decoded: for traces and tests.
pub trait AnyRequest: Sized + Debug + Encode {
    /// The package whose requests these are.
    fn package() -> &'static Package;

    /// Decodes the arguments of `opcode`.
    ///
    /// # Errors
    /// [`RequestError`]: the opcode is not declared, or the arguments do not parse.
    fn decode(opcode: u32, d: &mut Decoder<'_>) -> Result<Self, RequestError>;

    /// Decodes the results of `opcode` and encodes them again. Returns the canonical bytes.
    ///
    /// # Errors
    /// Those of [`AnyRequest::decode`].
    fn recode_reply(opcode: u32, d: &mut Decoder<'_>) -> Result<Bytes, RequestError>;

    /// The procedure of the request.
    fn procedure(&self) -> &'static ProcedureInfo;
}

/// Declares an RPC package. The head of this module explains it.
macro_rules! package {
    (
        $(#[$package_meta:meta])*
        pub $package:ident {
            service: $service:expr, port: $port:expr, statistics: $statistics:expr $(,)?
        }
        $(
            $(#[$meta:meta])*
            $opcode:literal $name:ident
            { $($argument:ident : $argument_type:ty),* $(,)? } -> $reply:ident
            { $($result:ident : $result_type:ty),* $(,)? }
            $(streams $direction:ident)? $(refuses $code:ident)? ;
        )*
    ) => {
        $(
            cellar_xdr::xdr_struct! {
                #[doc = concat!("Arguments of `", stringify!($package), "_", stringify!($name),
                    "`, opcode ", stringify!($opcode), ".")]
                ///
                $(#[$meta])*
                #[allow(missing_docs, reason = "fields have the interface's standard names")]
                pub struct $name { $(pub $argument: $argument_type,)* }

                #[doc = concat!("Results of `", stringify!($package), "_", stringify!($name),
                    "`. See [`", stringify!($name), "`].")]
                #[allow(missing_docs, reason = "fields have the interface's standard names")]
                pub struct $reply { $(pub $result: $result_type,)* }
            }

            impl $crate::package::Procedure for $name {
                type Reply = $reply;
                const OPCODE: u32 = $opcode;
                const NAME: &'static str = stringify!($name);
                const QUALIFIED_NAME: &'static str =
                    concat!(stringify!($package), "_", stringify!($name));
                const STREAM: $crate::package::Stream =
                    $crate::package::stream_of!($($direction)?);
                const INDEX: usize = Index::$name as usize;

                fn package() -> &'static $crate::package::Package {
                    &PACKAGE
                }
            }
        )*

        /// Indexes in the table of procedures.
        enum Index { $($name,)* }

        $(#[$package_meta])*
        pub static PACKAGE: $crate::package::Package = $crate::package::Package {
            name: stringify!($package),
            service_id: $service,
            port: $port,
            statistics_index: $statistics,
            procedures: &[$(
                $crate::package::ProcedureInfo {
                    opcode: $opcode,
                    name: stringify!($name),
                    index: Index::$name as usize,
                    stream: $crate::package::stream_of!($($direction)?),
                    refuses: $crate::package::refusal_of!($($code)?),
                },
            )*],
        };

        #[doc = concat!("A service with a handler for each procedure of ", stringify!($package),
            ". See [`serve`](crate::serve).")]
        pub trait Serve<C>: $(
            $crate::serve::Respond<
                $crate::serve::answer_of!($name $(streams $direction)? $(refuses $code)?), C> +
        )* $crate::serve::CallHandler {}

        impl<S, C> Serve<C> for S where S: $(
            $crate::serve::Respond<
                $crate::serve::answer_of!($name $(streams $direction)? $(refuses $code)?), C> +
        )* $crate::serve::CallHandler {}

        /// Answers one call of this package.
        ///
        /// # Errors
        /// The reason of the refusal: that of the handler, a declared one, or `RXGEN_OPCODE` if
        /// the package has no such procedure.
        pub async fn serve<S: Serve<C>, C>(
            service: &S,
            opcode: u32,
            call: &mut C,
        ) -> Result<(), S::Refusal> {
            match opcode {
                $( $opcode => Box::pin(<S as $crate::serve::Respond<
                    $crate::serve::answer_of!($name $(streams $direction)? $(refuses $code)?), C,
                >>::respond(service, call)).await, )*
                _ => Err(S::declared($crate::abort::AbortCode::RXGEN_OPCODE)),
            }
        }

        /// Any request of this package.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "for traces and tests, never stored")]
        pub enum Request {
            $(
                #[doc = concat!("A call of `", stringify!($name), "`.")]
                $name($name),
            )*
        }

        impl Request {
            /// Decodes the arguments of `opcode`.
            ///
            /// # Errors
            /// The opcode is not declared, or the arguments do not parse.
            pub fn decode(
                opcode: u32,
                d: &mut cellar_xdr::Decoder<'_>,
            ) -> Result<Self, $crate::package::RequestError> {
                <Self as $crate::package::AnyRequest>::decode(opcode, d)
            }
        }

        impl cellar_xdr::Encode for Request {
            fn encode(&self, out: &mut cellar_xdr::Encoder<'_>) {
                match self {
                    $( Self::$name(arguments) => {
                        out.u32($opcode);
                        cellar_xdr::Encode::encode(arguments, out);
                    } )*
                }
            }
        }

        impl $crate::package::AnyRequest for Request {
            fn package() -> &'static $crate::package::Package {
                &PACKAGE
            }

            fn decode(
                opcode: u32,
                d: &mut cellar_xdr::Decoder<'_>,
            ) -> Result<Self, $crate::package::RequestError> {
                match opcode {
                    $( $opcode => $crate::package::decode_for::<$name>(stringify!($name), d)
                        .map(Self::$name), )*
                    _ => Err($crate::package::RequestError::unknown_opcode(&PACKAGE, opcode)),
                }
            }

            fn recode_reply(
                opcode: u32,
                d: &mut cellar_xdr::Decoder<'_>,
            ) -> Result<bytes::Bytes, $crate::package::RequestError> {
                match opcode {
                    $( $opcode => $crate::package::decode_for::<$reply>(stringify!($name), d)
                        .map(|reply| cellar_xdr::Encode::to_xdr(&reply)), )*
                    _ => Err($crate::package::RequestError::unknown_opcode(&PACKAGE, opcode)),
                }
            }

            #[expect(clippy::indexing_slicing, reason = "the index is of the same list")]
            fn procedure(&self) -> &'static $crate::package::ProcedureInfo {
                match self {
                    $( Self::$name(_) => &PACKAGE.procedures[Index::$name as usize], )*
                }
            }
        }
    };
}
pub(crate) use package;

/// The [`Stream`] for the word `streams` of a declaration.
macro_rules! stream_of {
    () => {
        $crate::package::Stream::None
    };
    (request) => {
        $crate::package::Stream::Request
    };
    (reply) => {
        $crate::package::Stream::Reply
    };
    (both) => {
        $crate::package::Stream::Both
    };
    (results) => {
        $crate::package::Stream::Results
    };
}
pub(crate) use stream_of;

/// The name of the code after `refuses` in a declaration.
macro_rules! refusal_of {
    () => {
        None
    };
    ($code:ident) => {
        Some(stringify!($code))
    };
}
pub(crate) use refusal_of;
