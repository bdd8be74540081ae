#pragma once

#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/futures/requester.hpp"
#include "actors/pipeline/pipeline.hpp"

/// For the pipeline's own sources alone.
namespace troupe::actors {

template <class Answer, class Actor, class Request>
result<Answer> pipeline::ask(const Actor& whom, Request request) {
  return ask_->request<Answer>(whom, std::move(request), usual_deadlines.transfer).get();
}

}  // namespace troupe::actors
