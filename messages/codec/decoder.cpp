#include "messages/codec/decoder.hpp"

#include <fmt/format.h>

#include "messages/codec/codec.hpp"

namespace troupe::messages {
namespace {

static_assert(static_cast<int>(frame_kind::unlink) == static_cast<int>(wire::Kind::UNLINK));
static_assert(static_cast<int>(lane::data) == static_cast<int>(wire::Lane::DATA));
static_assert(static_cast<int>(dtype::boolean) == static_cast<int>(wire::DType::BOOLEAN));
static_assert(static_cast<int>(device_ref::kind::cuda) == static_cast<int>(wire::DeviceKind::CUDA));

/// The first broken rule. Thrown and caught in this file only: it unwinds the nested lists.
struct refusal {
  error what;
};

[[noreturn]] void throw_refusal(std::string text) {
  throw refusal{{errc::bad_frame, "frame refused: " + std::move(text)}};
}

void check(std::uint64_t count, std::uint64_t limit, const char* what, const char* name) {
  if (count > limit) throw_refusal(fmt::format("{} {}, limit {} is {}", count, what, name, limit));
}

template <class Ours, class Theirs>
Ours checked_enum(Theirs raw, Ours last, const char* what) {
  const auto number = static_cast<std::uint16_t>(raw);
  if (number > static_cast<std::uint16_t>(last))
    throw_refusal(fmt::format("unknown {} {}", what, number));
  return static_cast<Ours>(number);
}

class body_reader {
 public:
  body_reader(const limits& bounds, std::size_t tensors) : bounds_(bounds), tensors_(tensors) {}

  std::vector<element> read(capnp::List<wire::Element>::Reader in) {
    check(in.size(), bounds_.elements, "elements", "elements");
    std::vector<element> out;
    out.reserve(in.size());
    for (const auto part : in) {
      element& added = out.emplace_back();
      added.type = read_text(part.getType());
      added.fields = read_list(part.getFields(), 0);
    }
    return out;
  }

 private:
  value::list read_list(capnp::List<wire::Value>::Reader in, std::uint32_t depth) {
    check(depth, bounds_.depth, "nested lists", "depth");
    values_ += in.size();
    check(values_, bounds_.values, "values", "values");
    value::list out;
    out.reserve(in.size());
    for (const auto item : in) out.push_back(read_value(item, depth));
    return out;
  }

  value read_value(wire::Value::Reader in, std::uint32_t depth) {
    switch (in.which()) {
      case wire::Value::NONE:
        return {};
      case wire::Value::INTEGER:
        return {in.getInteger()};
      case wire::Value::REAL:
        return {in.getReal()};
      case wire::Value::TEXT:
        return {read_text(in.getText())};
      case wire::Value::BYTES:
        throw_refusal("a byte string, which no message holds");
      case wire::Value::TENSOR:
        return {read_index(in.getTensor())};
      case wire::Value::ACTOR:
        return {read_actor(in.getActor())};
      case wire::Value::LIST:
        return {read_list(in.getList(), depth + 1)};
    }
    throw_refusal("unknown kind of value");
  }

  value::tensor_index read_index(std::uint32_t index) const {
    if (index >= tensors_)
      throw_refusal(fmt::format("tensor index {} of {} tensors", index, tensors_));
    return {index};
  }

  std::string read_text(capnp::Text::Reader in) const {
    check(in.size(), bounds_.text_bytes, "bytes of text", "text_bytes");
    return {in.cStr(), in.size()};
  }

  actor_ref read_actor(wire::ActorRef::Reader in) const {
    return {read_text(in.getNode()), read_text(in.getAddress()), in.getId()};
  }

  const limits& bounds_;
  const std::size_t tensors_;
  std::size_t values_ = 0;
};

std::vector<std::int64_t> read_sizes(capnp::List<std::int64_t>::Reader in, const limits& bounds) {
  check(in.size(), bounds.rank, "dimensions", "rank");
  std::vector<std::int64_t> out(in.size());
  for (unsigned i = 0; i < in.size(); ++i) out[i] = in[i];
  return out;
}

wire_tensor read_tensor(wire::Tensor::Reader in, const limits& bounds) {
  wire_tensor out;
  out.descriptor.type = checked_enum(in.getType(), dtype::boolean, "element type");
  out.descriptor.device.type =
      checked_enum(in.getDeviceKind(), device_ref::kind::cuda, "kind of device");
  out.descriptor.device.index = in.getDeviceIndex();
  out.descriptor.shape = read_sizes(in.getShape(), bounds);
  out.descriptor.strides = read_sizes(in.getStrides(), bounds);
  const result<std::uint64_t> bytes = checked_bytes(out.descriptor, bounds);
  if (!bytes) throw_refusal(bytes.error().text);
  if (*bytes != in.getByteCount())
    throw_refusal(fmt::format("a tensor of {} bytes that claims {}", *bytes, in.getByteCount()));
  out.bytes.bytes = *bytes;
  return out;
}

std::vector<wire_tensor> read_tensors(capnp::List<wire::Tensor>::Reader in, const limits& bounds) {
  check(in.size(), bounds.tensors, "tensors", "tensors");
  std::vector<wire_tensor> out;
  out.reserve(in.size());
  std::uint64_t total = 0;
  for (const auto tensor : in) {
    out.push_back(read_tensor(tensor, bounds));
    const std::uint64_t bytes = out.back().bytes.bytes;
    check(bytes, bounds.tensor_bytes - total, "more tensor bytes", "tensor_bytes (what is left)");
    total += bytes;
  }
  return out;
}

}  // namespace

result<frame> read_frame(wire::Frame::Reader in, const limits& bounds) {
  if (in.getVersion() != protocol_version)
    return fail(errc::version_mismatch, fmt::format("the peer speaks protocol {}, we speak {}",
                                                    in.getVersion(), protocol_version));
  try {
    frame out;
    out.kind = checked_enum(in.getKind(), frame_kind::unlink, "kind");
    out.lane = checked_enum(in.getLane(), lane::data, "lane");
    out.sender = in.getSender();
    out.target = in.getTarget();
    out.request_id = in.getRequestId();
    out.deadline_us = in.getDeadlineUs();
    out.tensors = read_tensors(in.getTensors(), bounds);
    out.body = body_reader(bounds, out.tensors.size()).read(in.getBody());
    return out;
  } catch (refusal& broken) {
    return tl::unexpected(std::move(broken.what));
  }
}

}  // namespace troupe::messages
