#include "actors/wire/message_registry.hpp"

#include <caf/actor_addr.hpp>
#include <caf/error.hpp>
#include <caf/system_messages.hpp>
#include <exception>
#include <stdexcept>

#include "actors/base/errors.hpp"
#include "engine/base/torch_error.hpp"

namespace troupe::actors {
namespace {

/// CAF's error answer travels as ours; it has no fields of its own.
void write_error(const caf::error& from, field_writer& out) {
  const auto mine = from_caf(from);
  out(mine.code, mine.text, is_own(from));
}

caf::error read_error(field_reader& in) {
  error mine;
  bool own = true;
  in(mine.code, mine.text, own);
  return own ? to_caf(mine) : to_caf_foreign(mine);
}

/// exit_msg and down_msg: who ended, and why.
template <class T>
void write_end(const void* object, field_writer& out) {
  const auto& end = *static_cast<const T*>(object);
  out(caf::actor_cast<caf::strong_actor_ptr>(end.source));
  const auto mine = end.reason ? from_caf(end.reason) : error{errc::cancelled, ""};
  out(static_cast<bool>(end.reason), mine.code, mine.text);
}

template <class T>
caf::message read_end(field_reader& in) {
  caf::strong_actor_ptr source;
  bool failed = false;
  error mine;
  in(source, failed, mine.code, mine.text);
  return caf::make_message(
      T{caf::actor_cast<caf::actor_addr>(source), failed ? to_caf(mine) : caf::error{}});
}

}  // namespace

message_registry::message_registry() {
  add<std::int32_t>("i32");
  add<std::uint32_t>("u32");
  add<std::int64_t>("i64");
  add<std::uint64_t>("u64");
  add<bool>("bool");
  add<float>("f32");
  add<double>("f64");
  add<std::string>("string");
  add<at::Tensor>("tensor");
  insert(caf::make_rtti_pair<caf::error>(), {"error", messages::lane::data,
                                             [](const void* object, field_writer& out) {
                                               write_error(*static_cast<const caf::error*>(object),
                                                           out);
                                             },
                                             [](field_reader& in) {
                                               auto mine = read_error(in);
                                               return caf::make_message(std::move(mine));
                                             }});
  insert(caf::make_rtti_pair<caf::exit_msg>(),
         {"exit", messages::lane::data, write_end<caf::exit_msg>, read_end<caf::exit_msg>});
  insert(caf::make_rtti_pair<caf::down_msg>(),
         {"down", messages::lane::data, write_end<caf::down_msg>, read_end<caf::down_msg>});
}

message_registry::key message_registry::key_of(caf::rtti_pair type) {
  return {type.first, type.second ? std::type_index(*type.second) : std::type_index(typeid(void))};
}

void message_registry::insert(caf::rtti_pair type, codec entry) {
  const auto [added, fresh] = by_type_.emplace(key_of(type), entry);
  if (!fresh || !by_name_.emplace(entry.name, std::move(entry)).second)
    throw std::logic_error("message type '" + added->second.name + "' was added twice");
  if (type.second) by_address_.emplace(type.second, &added->second);
}

const message_registry::codec* message_registry::codec_of(caf::rtti_pair type) const {
  // Most types have their information at one address only, which is found without comparing names.
  if (const auto known = by_address_.find(type.second); known != by_address_.end())
    return known->second;
  const auto found = by_type_.find(key_of(type));
  return found == by_type_.end() ? nullptr : &found->second;
}

result<void> message_registry::encode(const caf::type_erased_tuple& content, messages::frame& out,
                                      actor_directory& directory) const try {
  bool urgent = content.size() > 0;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const auto* found = codec_of(content.type(i));
    if (!found)
      return fail(errc::unknown_message, "a message holds " + content.stringify(i) +
                                             ", whose type was not added to the message registry");
    auto& element = out.body.emplace_back(messages::element{found->name, {}});
    field_writer fields(element.fields, out.tensors, directory);
    found->encode(content.get(i), fields);
    urgent = urgent && found->lane == messages::lane::control;
  }
  out.lane = urgent ? messages::lane::control : messages::lane::data;
  return {};
} catch (const std::exception& problem) {
  return fail(errc::handler_failed, "a message cannot be sent: " + engine::reason_of(problem));
}

result<caf::message> message_registry::decode(const messages::frame& in,
                                              actor_directory& directory) const try {
  caf::message all;
  for (const auto& element : in.body) {
    const auto found = by_name_.find(element.type);
    if (found == by_name_.end())
      return fail(errc::unknown_message, "message type '" + element.type + "' is not known here");
    field_reader fields(element.fields, in.tensors, directory, found->second.how);
    auto one = found->second.decode(fields);
    if (!fields.ok())
      return fail(errc::bad_frame, "the fields of a '" + element.type + "' message do not fit");
    if (in.body.size() == 1) return one;
    all += one;
  }
  return all;
} catch (const std::exception& problem) {
  return fail(errc::handler_failed, "a message cannot be read: " + engine::reason_of(problem));
}

}  // namespace troupe::actors
