//! The server's side of a package: each procedure has one handler, or a declared refusal.
//!
//! `package!` generates a trait `Serve` and a function `serve` for each package. A service is a
//! [`CallHandler`] with one handler for each procedure. The declaration decides which trait the
//! handler implements:
//!
//! | declaration | trait | task of the handler |
//! | --- | --- | --- |
//! | without `streams` | [`Handle`] | returns the results |
//! | `streams request`, `reply`, `both` | [`HandleStream`] | also reads or writes the open call |
//! | `streams results` | [`HandleListing`] | writes the results itself, piece by piece |
//! | `refuses CODE` | none | every call ends with this code |
//!
//! 1. `serve` compiles only for a service that has a handler for each procedure of the package.
//! 2. Arguments are decoded before the handler runs. If they do not parse, the caller gets the code
//!    of [`ServerCall::arguments`].
//! 3. An unknown opcode, and a declared refusal with `RXGEN_OPCODE`, is answered without decoding.
//!
//! The traits are generic over the type `C` of a call, because calls belong to a higher crate.

use std::future::Future;
use std::marker::PhantomData;

use cellar_xdr::{Decode, Encode};

use crate::abort::AbortCode;
use crate::package::Procedure;

/// The server's end of a call, as `serve` uses it.
pub trait ServerCall {
    /// Decodes the arguments.
    ///
    /// # Errors
    /// `RXGEN_SS_UNMARSHAL` if they do not parse; the call's own code if it failed.
    fn arguments<A: Decode>(&mut self) -> impl Future<Output = Result<A, AbortCode>>;

    /// Appends the results to the reply.
    fn reply<R: Encode>(&mut self, results: &R);
}

/// A service that handles the calls of a package.
pub trait CallHandler {
    /// The reason for which a call is refused.
    type Refusal;

    /// The reason if a call failed before its handler ran, with the code of
    /// [`ServerCall::arguments`].
    fn failed(code: AbortCode) -> Self::Refusal;

    /// The reason for a refusal that the package declares, and for an unknown opcode.
    fn declared(code: AbortCode) -> Self::Refusal {
        Self::failed(code)
    }
}

/// The handler of a procedure with arguments and results.
pub trait Handle<P: Procedure, C>: CallHandler {
    /// Executes the procedure.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn handle(
        &self,
        call: &C,
        arguments: P,
    ) -> impl Future<Output = Result<P::Reply, Self::Refusal>>;
}

/// The handler of a procedure that streams bytes after the arguments or before the results.
pub trait HandleStream<P: Procedure, C>: CallHandler {
    /// Executes the procedure, and reads or writes the bytes.
    ///
    /// # Errors
    /// The reason of the refusal, also after a part of the bytes was written.
    fn handle_stream(
        &self,
        call: &mut C,
        arguments: P,
    ) -> impl Future<Output = Result<P::Reply, Self::Refusal>>;
}

/// The handler of a procedure whose results may be too long for memory.
pub trait HandleListing<P: Procedure, C>: CallHandler {
    /// Executes the procedure, and writes the encoded results.
    ///
    /// # Errors
    /// The reason of the refusal, also after a part of the results was written.
    fn handle_listing(
        &self,
        call: &mut C,
        arguments: P,
    ) -> impl Future<Output = Result<(), Self::Refusal>>;
}

/// Answers the calls of one procedure. `M` is one of [`Handled`], [`Streamed`], [`Listed`],
/// [`Refused`]; the handler traits above imply this trait.
pub trait Respond<M, C>: CallHandler {
    /// Answers one call.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn respond(&self, call: &mut C) -> impl Future<Output = Result<(), Self::Refusal>>;
}

/// Procedure `P` has a [`Handle`].
#[derive(Debug)]
pub struct Handled<P>(PhantomData<P>);

/// Procedure `P` has a [`HandleStream`].
#[derive(Debug)]
pub struct Streamed<P>(PhantomData<P>);

/// Procedure `P` has a [`HandleListing`].
#[derive(Debug)]
pub struct Listed<P>(PhantomData<P>);

/// Each call of procedure `P` is refused with `CODE`.
#[derive(Debug)]
pub struct Refused<P, const CODE: i32>(PhantomData<P>);

impl<S, P, C> Respond<Handled<P>, C> for S
where
    S: Handle<P, C>,
    P: Procedure,
    C: ServerCall,
{
    async fn respond(&self, call: &mut C) -> Result<(), S::Refusal> {
        let arguments = call.arguments::<P>().await.map_err(S::failed)?;
        let results = self.handle(call, arguments).await?;
        call.reply(&results);
        Ok(())
    }
}

impl<S, P, C> Respond<Streamed<P>, C> for S
where
    S: HandleStream<P, C>,
    P: Procedure,
    C: ServerCall,
{
    async fn respond(&self, call: &mut C) -> Result<(), S::Refusal> {
        let arguments = call.arguments::<P>().await.map_err(S::failed)?;
        let results = self.handle_stream(call, arguments).await?;
        call.reply(&results);
        Ok(())
    }
}

impl<S, P, C> Respond<Listed<P>, C> for S
where
    S: HandleListing<P, C>,
    P: Procedure,
    C: ServerCall,
{
    async fn respond(&self, call: &mut C) -> Result<(), S::Refusal> {
        let arguments = call.arguments::<P>().await.map_err(S::failed)?;
        self.handle_listing(call, arguments).await
    }
}

impl<S, P, C, const CODE: i32> Respond<Refused<P, CODE>, C> for S
where
    S: CallHandler,
    P: Procedure,
    C: ServerCall,
{
    async fn respond(&self, call: &mut C) -> Result<(), S::Refusal> {
        let code = AbortCode(CODE);
        if code != AbortCode::RXGEN_OPCODE {
            call.arguments::<P>().await.map_err(S::failed)?;
        }
        Err(S::declared(code))
    }
}

/// The first parameter of [`Respond`] for a declaration.
macro_rules! answer_of {
    ($name:ident) => { $crate::serve::Handled<$name> };
    ($name:ident streams results) => { $crate::serve::Listed<$name> };
    ($name:ident streams $direction:ident) => { $crate::serve::Streamed<$name> };
    ($name:ident $(streams $direction:ident)? refuses $code:ident) => {
        $crate::serve::Refused<$name, { $crate::abort::AbortCode::$code.0 }>
    };
}
pub(crate) use answer_of;
