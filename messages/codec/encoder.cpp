#include "messages/codec/encoder.hpp"

#include <fmt/format.h>

#include "messages/codec/codec.hpp"

namespace troupe::messages {
namespace {

template <class T>
constexpr std::size_t struct_words = capnp::_::structSize<T>().total();

/// Adds up the words of a frame and stops at the first limit that is exceeded.
class measure {
 public:
  explicit measure(const limits& bounds) : bounds_(bounds) {}

  result<std::size_t> of(const frame& message) {
    words_ = 1 + struct_words<wire::Frame>;
    add_body(message);
    add_tensors(message);
    const std::size_t bytes = words_ * sizeof(capnp::word);
    if (bytes > bounds_.header_bytes)
      refuse("header bytes", bytes, "header_bytes", bounds_.header_bytes);
    if (!problem_.text.empty()) return tl::unexpected(problem_);
    return words_;
  }

 private:
  void add_body(const frame& message) {
    if (message.body.size() > bounds_.elements)
      return refuse("elements", message.body.size(), "elements", bounds_.elements);
    words_ += 1 + message.body.size() * struct_words<wire::Element>;
    for (const element& part : message.body) {
      add_text(part.type.size());
      add_list(part.fields, message.tensors.size(), 0);
    }
  }

  void add_list(const value::list& items, std::size_t tensors, std::uint32_t depth) {
    if (depth > bounds_.depth) return refuse("nested lists", depth, "depth", bounds_.depth);
    values_ += items.size();
    if (values_ > bounds_.values) return refuse("values", values_, "values", bounds_.values);
    words_ += 1 + items.size() * struct_words<wire::Value>;
    for (const value& item : items) add_value(item, tensors, depth);
  }

  void add_value(const value& item, std::size_t tensors, std::uint32_t depth) {
    if (const auto* text = std::get_if<std::string>(&item.of)) {
      add_text(text->size());
    } else if (const auto* actor = std::get_if<actor_ref>(&item.of)) {
      words_ += struct_words<wire::ActorRef>;
      add_text(actor->node.size());
      add_text(actor->address.size());
    } else if (const auto* list = std::get_if<value::list>(&item.of)) {
      add_list(*list, tensors, depth + 1);
    } else if (const auto* tensor = std::get_if<value::tensor_index>(&item.of)) {
      if (tensor->index >= tensors)
        refuse("as a tensor index", tensor->index, "tensors of this frame", tensors);
    }
  }

  void add_text(std::size_t bytes) {
    if (bytes > bounds_.text_bytes)
      return refuse("bytes of text", bytes, "text_bytes", bounds_.text_bytes);
    words_ += bytes / sizeof(capnp::word) + 1;  // with the terminating zero
  }

  void add_tensors(const frame& message) {
    if (message.tensors.size() > bounds_.tensors)
      return refuse("tensors", message.tensors.size(), "tensors", bounds_.tensors);
    words_ += 1 + message.tensors.size() * struct_words<wire::Tensor>;
    std::uint64_t total = 0;
    for (const wire_tensor& tensor : message.tensors) {
      const result<std::uint64_t> bytes = checked_bytes(tensor.descriptor, bounds_);
      if (!bytes) return refuse(bytes.error().text);
      if (!tensor.bytes.device.is_host() && !bounds_.device_memory)
        return refuse(
            fmt::format("a tensor lies in the memory of {}, which this link does not move; "
                        "send a copy in the host's memory",
                        to_string(tensor.bytes.device)));
      if (*bytes != tensor.bytes.bytes || (*bytes > 0 && tensor.bytes.data == nullptr))
        return refuse(fmt::format("a tensor of {} bytes was given {} bytes", *bytes,
                                  tensor.bytes.data == nullptr ? 0 : tensor.bytes.bytes));
      if (*bytes > bounds_.tensor_bytes - total)
        return refuse("more tensor bytes", *bytes, "tensor_bytes", bounds_.tensor_bytes);
      total += *bytes;
      words_ += 2 * tensor.descriptor.shape.size();
    }
  }

  void refuse(const char* what, std::uint64_t count, const char* name, std::uint64_t limit) {
    refuse(fmt::format("{} {}, limit {} is {}", count, what, name, limit));
  }

  void refuse(const std::string& text) {
    if (problem_.text.empty()) problem_ = {errc::bad_frame, "frame not sent: " + text};
  }

  const limits& bounds_;
  std::size_t words_ = 0;
  std::size_t values_ = 0;
  error problem_;
};

kj::StringPtr text_of(const std::string& text) {
  return {text.c_str(), text.size()};
}

void write_actor(const actor_ref& actor, wire::ActorRef::Builder out) {
  out.setNode(text_of(actor.node));
  out.setAddress(text_of(actor.address));
  out.setId(actor.id);
}

void write_list(const value::list& items, capnp::List<wire::Value>::Builder out);

struct value_writer {
  wire::Value::Builder out;

  void operator()(std::monostate) { out.setNone(); }
  void operator()(std::int64_t number) { out.setInteger(number); }
  void operator()(double number) { out.setReal(number); }
  void operator()(const std::string& text) { out.setText(text_of(text)); }
  void operator()(value::tensor_index tensor) { out.setTensor(tensor.index); }
  void operator()(const actor_ref& actor) { write_actor(actor, out.initActor()); }
  void operator()(const value::list& items) {
    write_list(items, out.initList(static_cast<unsigned>(items.size())));
  }
};

void write_list(const value::list& items, capnp::List<wire::Value>::Builder out) {
  for (unsigned i = 0; i < out.size(); ++i) std::visit(value_writer{out[i]}, items[i].of);
}

void write_tensor(const wire_tensor& tensor, wire::Tensor::Builder out) {
  const tensor_descriptor& what = tensor.descriptor;
  out.setType(static_cast<wire::DType>(what.type));
  out.setDeviceKind(static_cast<wire::DeviceKind>(what.device.type));
  out.setDeviceIndex(what.device.index);
  out.setShape(kj::arrayPtr(what.shape.data(), what.shape.size()));
  out.setStrides(kj::arrayPtr(what.strides.data(), what.strides.size()));
  out.setByteCount(tensor.bytes.bytes);
}

}  // namespace

result<std::size_t> header_words(const frame& message, const limits& bounds) {
  return measure(bounds).of(message);
}

void write_frame(const frame& message, wire::Frame::Builder out) {
  out.setVersion(protocol_version);
  out.setKind(static_cast<wire::Kind>(message.kind));
  out.setLane(static_cast<wire::Lane>(message.lane));
  out.setSender(message.sender);
  out.setTarget(message.target);
  out.setRequestId(message.request_id);
  out.setDeadlineUs(message.deadline_us);
  auto body = out.initBody(static_cast<unsigned>(message.body.size()));
  for (unsigned i = 0; i < body.size(); ++i) {
    body[i].setType(text_of(message.body[i].type));
    write_list(message.body[i].fields,
               body[i].initFields(static_cast<unsigned>(message.body[i].fields.size())));
  }
  auto tensors = out.initTensors(static_cast<unsigned>(message.tensors.size()));
  for (unsigned i = 0; i < tensors.size(); ++i) write_tensor(message.tensors[i], tensors[i]);
}

}  // namespace troupe::messages
