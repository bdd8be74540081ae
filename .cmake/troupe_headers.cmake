# Precompiled headers of unity builds: what most sources with LibTorch include of libraries
# (.cmake/shared_headers.hpp) is parsed once for all targets that are compiled in one way. Builds of single
# sources have none, so that no source leans on it. Tests have their own (troupe_precompiled_headers).

# troupe_headers_for(OUT OPTIONS): the target whose precompiled headers fit targets with these options; the
# compiler takes no others.
function(troupe_headers_for out options)
  string(MAKE_C_IDENTIFIER "shared_headers${options}" name)
  set(${out} ${name} PARENT_SCOPE)
  if(TARGET ${name})
    return()
  endif()
  set(source ${PROJECT_BINARY_DIR}/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "int main() {}\n")
  add_library(${name} STATIC ${source})
  target_link_libraries(${name} PRIVATE troupe_options torch::torch caf::core)
  target_compile_options(${name} PRIVATE ${options})
  target_precompile_headers(${name} PRIVATE ${PROJECT_SOURCE_DIR}/.cmake/shared_headers.hpp)
  if(NOT options)  # what computes calls operators, whose headers take as long as all others of LibTorch
    target_precompile_headers(${name} PRIVATE <ATen/ops/empty.h>)
  endif()
endfunction()

# Sources with options of their own would be refused the headers.
function(troupe_keep_own_options target)
  get_target_property(folder ${target} SOURCE_DIR)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "[.]cpp$")
  foreach(source ${sources})
    get_filename_component(source ${source} ABSOLUTE BASE_DIR ${folder})
    get_source_file_property(options ${source} TARGET_DIRECTORY ${target} COMPILE_OPTIONS)
    if(options)
      set_source_files_properties(${source} TARGET_DIRECTORY ${target}
        PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

# Libraries and programs with LibTorch share headers. Not those with Catch2, where LibTorch's macro CHECK
# would come first, nor programs with options of their own, which are few.
function(troupe_share_headers target)
  get_target_property(type ${target} TYPE)
  get_target_property(libraries ${target} LINK_LIBRARIES)
  get_target_property(options ${target} COMPILE_OPTIONS)
  get_target_property(taken ${target} PRECOMPILE_HEADERS)
  if(NOT type MATCHES "^(STATIC_LIBRARY|EXECUTABLE)$" OR NOT libraries OR taken
      OR "Catch2::Catch2" IN_LIST libraries)
    return()
  endif()
  if(NOT options)
    set(options "")
  elseif(NOT (options STREQUAL "-O1" AND type STREQUAL "STATIC_LIBRARY"))
    return()
  endif()
  troupe_links_torch(has_torch ${libraries})
  if(has_torch)
    troupe_headers_for(headers "${options}")
    if(type STREQUAL "EXECUTABLE")  # as the sources of libraries are, or the headers would not fit
      set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${target} PRIVATE -fPIC)
    endif()
    troupe_keep_own_options(${target})
    target_precompile_headers(${target} REUSE_FROM ${headers})
  endif()
endfunction()
