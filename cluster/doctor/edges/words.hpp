#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <variant>

#include "messages/frame.hpp"

// What is said over our link, by the type of the one element of a frame. A probe asks a listener by
// requests. A process that came to join a run (a guest) and the doctor that receives it say the
// rest by messages.

namespace troupe::cluster::doctor {

namespace words {

inline constexpr const char* echo = "doctor.echo";    ///< Answer.
inline constexpr const char* clock = "doctor.clock";  ///< Your time: [nanoseconds].
/// What is below our link, for whose address in UCX is [text]: [kind, address, token], or an empty
/// kind and why there is none.
inline constexpr const char* raw = "doctor.raw";

// From a guest.
inline constexpr const char* visit = "doctor.visit";  ///< I am here: [name].
/// A process wrote a line: [process, 1 if to standard error, text].
inline constexpr const char* line = "doctor.line";
inline constexpr const char* end = "doctor.end";  ///< It has ended: [process, code, signal].

// To a guest.
inline constexpr const char* start = "doctor.start";  ///< Start a process: [process, request].
inline constexpr const char* kill = "doctor.kill";    ///< End one: [process].
inline constexpr const char* alive = "doctor.alive";  ///< I am here; each second.
inline constexpr const char* leave = "doctor.leave";  ///< That is all.

}  // namespace words

/// Why a process is turned away that came to join a run, and is to come as a guest.
inline constexpr const char* doctor_is_here = "troupe doctor listens here, and no trainer";

/// A message to the other end.
[[nodiscard]] inline messages::frame saying(const char* word, messages::value::list fields) {
  messages::frame out;
  out.body.push_back({word, std::move(fields)});
  return out;
}

/// The field of a frame's one element; null: there is none of that type.
template <class T>
[[nodiscard]] const T* field_of(const messages::frame& of, std::size_t index) {
  if (of.body.size() != 1 || of.body.front().fields.size() <= index) return nullptr;
  return std::get_if<T>(&of.body.front().fields[index].of);
}

}  // namespace troupe::cluster::doctor
