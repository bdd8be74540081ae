# The header of a frame: everything one Troupe process says to another, except the tensors' bytes.
#
# How to read this file: comments speak to the sender. "Must" means that a receiver closes the link
# with a named error if you do otherwise; it closes only that link, and counts the frame.
#
# Nothing here is read before the handshake is done, or without a MAC that holds (docs/protocol.md).
#
# On the wire a header is one unpacked Cap'n Proto segment without a segment table, or for a frame of
# numbers without tensors the short form of the same content (codec/short_header.hpp). Tensor bytes
# travel beside it (messages/link/seal/format.hpp), from tensor storage into tensor storage.
#
# Ordering: frames of one lane arrive in the order you sent them. The control lane overtakes the
# data lane: never let a control frame rely on a data frame sent before it.
#
# Limits (messages/codec/limits.hpp has the numbers): header bytes, tensors, rank, bytes of one
# frame's tensors, elements, values in all, depth of nested lists, bytes of one text or data.
# The receiver checks each of them before it allocates.
#
# Changing it: add fields at the end with a default that means "as before", and leave `version`
# alone. Anything else is another protocol: bump `protocol_version` in messages/frame.hpp.

@0xf56ecb5cdd45ae9a;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::messages::wire");

struct Frame {
  version @0 :UInt16;
  # The protocol you speak. A receiver that speaks another answers with nothing but a closed link.

  kind @1 :Kind;
  lane @2 :Lane;
  # Must be the lane the frame is sent on.

  epoch @3 :UInt64;
  # Reserved for the run epoch: leave it 0. Receivers do not look at it; which epoch a step belongs
  # to, its messages say themselves.

  sender @4 :UInt64;
  target @5 :UInt64;
  # Actor ids, each in its own process; 0 is the process itself.

  requestId @6 :UInt64;
  # Unique among your outstanding requests, and not 0, when you expect a `response`. There it is the
  # id of the request you answer.

  deadlineUs @7 :UInt64;
  # How much longer you will wait, in microseconds from the moment of sending; 0: no limit. A
  # duration, because the clocks of two machines differ.

  traceId @8 :UInt64;
  spanId @9 :UInt64;
  # Reserved for the trace this frame belongs to and the span that caused it: leave them 0.
  # Receivers do not look at them.

  body @10 :List(Element);
  tensors @11 :List(Tensor);
}

enum Kind {
  hello @0;
  # The first frame each way on a new link: who I am. One element `hello`: your name, the address you
  # listen at, and for those on your host where you run: the host (boot id and pid namespace), the
  # network namespace, the process id and when it started (clock ticks since boot). A host that you
  # cannot name is an empty text: nobody will ask about you then.

  message @1;    # To an actor; no answer expected.
  request @2;    # To an actor; it answers with `response`.
  response @3;   # An error is answered as one element `error`: its code and text.
  link @4;       # My actor `sender` and your actor `target` end together.
  monitor @5;    # Tell me when actor `target` ends.
  down @6;       # My actor `sender` has ended; the body is the reason, an element `error`.
  lookup @7;     # Which actor has this name? Answered by `response`.

  heartbeat @8;
  # I am alive. Send one every 100 ms or so, on the control lane, whatever else you send. Any frame
  # is a sign of life; who shows none for a second is cut off and cannot return. It may overtake the
  # hello. The body may have an element `progress` for each of your threads that compute: its name;
  # a number that grows whenever work begins or ends; the kind of work (engine/model/usual_times.hpp),
  # -1 while there is none; the work and the place in it as texts; and in seconds how long you have
  # seen it there, the usual time of that work (below 0: none yet) and the longest of any.

  goodbye @9;    # I leave in order; do not count me as lost.
  unlink @10;    # Takes a `link` back.
}

enum Lane {
  control @0;
  data @1;
}

struct Element {
  # One part of a message: its registered type name and that type's fields in order.
  type @0 :Text;
  fields @1 :List(Value);
}

struct Value {
  union {
    none @0 :Void;
    integer @1 :Int64;
    real @2 :Float64;
    text @3 :Text;
    bytes @4 :Data;
    tensor @5 :UInt32;
    # An index into `Frame.tensors`; must be less than their number.
    actor @6 :ActorRef;
    list @7 :List(Value);
    # Lists may nest, but not deeper than the limit.
  }
}

struct ActorRef {
  # An actor anywhere in the cluster.
  node @0 :Text;     # The name of the process that hosts it.
  address @1 :Text;  # Where that process listens: "host:port" or "unix:PATH".
  id @2 :UInt64;
}

enum DType {
  f32 @0;
  f64 @1;
  f16 @2;
  bf16 @3;
  i64 @4;
  i32 @5;
  i16 @6;
  i8 @7;
  u8 @8;
  boolean @9;
}

enum DeviceKind {
  cpu @0;
  cuda @1;
}

struct Tensor {
  # What a tensor looks like. Its bytes are little-endian elements in the order of storage.
  type @0 :DType;
  deviceKind @1 :DeviceKind;
  deviceIndex @2 :Int8 = -1;
  # Where the bytes lay at your side. The receiver decides where they arrive.

  shape @3 :List(Int64);
  # No negative sizes; a size of 0 makes an empty tensor.

  strides @4 :List(Int64);
  # In elements, as many as `shape` has sizes. The layout must be dense: the elements fill the byte
  # range without gap or overlap, in any order of the dimensions (so channels-last is fine).

  byteCount @5 :UInt64;
  # Must be the product of `shape` times the size of an element.
}
